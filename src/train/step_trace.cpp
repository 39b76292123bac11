#include "train/step_trace.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "formats/json.h"
#include "observe/chrome_trace.h"

namespace longspan {
namespace {

using Kind = OperationKind;

constexpr const char* kWork = "work";
constexpr const char* kWeights = "weights and gradients";

bool is_collective(Kind kind) {
  return kind == Kind::kGatherWeights || kind == Kind::kReduceGradients;
}

std::string label(const Operation& operation) {
  return text(operation_kind_name(operation.kind), is_collective(operation.kind) ? " unit " : " L",
              operation.layer);
}

// The transfers that start or end in an operation: null for operations that move no rows.
const Round* round_of(const Operation& operation, const ChunkPlans& plans) {
  const AttentionPlan& plan = operation.pass == Pass::kBackward ? plans.backward : plans.forward;
  switch (operation.kind) {
    case Kind::kAttentionOutStart:
    case Kind::kAttentionOutFinish:
      return &plan.out.at(static_cast<size_t>(operation.index));
    case Kind::kAttentionBackStart:
    case Kind::kAttentionBackFinish:
      return &plan.back.at(static_cast<size_t>(operation.index));
    default:
      return nullptr;
  }
}

bool sends(Kind kind) {
  return kind == Kind::kAttentionOutStart || kind == Kind::kAttentionBackStart;
}

bool of_out_leg(Kind kind) {
  return kind == Kind::kAttentionOutStart || kind == Kind::kAttentionOutFinish;
}

}  // namespace

StepTrace::StepTrace(int rank, at::Device device)
    : rank_(rank),
      on_gpu_(!device.is_cpu()),
      marks_(device),
      start_(std::chrono::steady_clock::now()) {}

double StepTrace::host_us() const {
  const auto since = std::chrono::steady_clock::now() - start_;
  return std::chrono::duration<double, std::micro>(since).count();
}

void StepTrace::begin() {
  host_.push_back({host_us(), 0});
  marks_.mark();
}

void StepTrace::end() {
  marks_.mark();
  host_.back().end_us = host_us();
}

void StepTrace::add_arrows(const Operation& operation, const Stretch& work,
                           const std::vector<PlannedMicroBatch>& micro_batches,
                           ChromeTrace* trace) const {
  const PlannedMicroBatch& batch = micro_batches.at(static_cast<size_t>(operation.micro_batch));
  if (batch.plans.empty()) return;
  const Round* round = round_of(operation, batch.plans.at(static_cast<size_t>(operation.chunk)));
  if (round == nullptr) return;
  const bool sending = sends(operation.kind);
  std::set<int> peers;
  for (const Transfer& transfer : round->transfers) {
    if ((sending ? transfer.source : transfer.destination) != rank_) continue;
    peers.insert(sending ? transfer.destination : transfer.source);
  }
  const double middle_us = (work.begin_us + work.end_us) / 2;
  for (const int peer : peers) {
    const std::string id =
        text(of_out_leg(operation.kind) ? "out" : "back", " ", pass_name(operation.pass), " M",
             operation.micro_batch, " L", operation.layer, " C", operation.chunk, " R",
             operation.index, " ", sending ? rank_ : peer, ">", sending ? peer : rank_);
    if (sending) {
      trace->arrow_begin(rank_, kWork, middle_us, id);
    } else {
      trace->arrow_end(rank_, kWork, middle_us, id);
    }
  }
}

std::string StepTrace::events(const StepSchedule& schedule,
                              const std::vector<PlannedMicroBatch>& micro_batches) const {
  LONGSPAN_CHECK(host_.size() == schedule.operations.size(), "traced ", host_.size(),
                 " operations of ", schedule.operations.size());
  const std::vector<double> seconds = marks_.seconds();
  ChromeTrace trace;
  trace.name_rank(rank_, text("rank ", rank_));
  for (size_t idx = 0; idx < host_.size(); ++idx) {
    const Operation& operation = schedule.operations[idx];
    const Stretch work{1e6 * seconds[2 * idx], 1e6 * seconds[2 * idx + 1]};
    TraceSlice slice{.rank = rank_,
                     .track = on_gpu_ && is_collective(operation.kind) ? kWeights : kWork,
                     .name = label(operation),
                     .category = std::string(pass_name(operation.pass)),
                     .begin_us = work.begin_us,
                     .end_us = work.end_us,
                     .details = {{"pass", std::string(pass_name(operation.pass))},
                                 {"micro_batch", std::to_string(operation.micro_batch)},
                                 {"chunk", std::to_string(operation.chunk)},
                                 {"index", std::to_string(operation.index)}}};
    trace.slice(slice);
    add_arrows(operation, work, micro_batches, &trace);
    if (!on_gpu_) continue;
    slice.track = "host";
    slice.begin_us = host_[idx].begin_us;
    slice.end_us = host_[idx].end_us;
    trace.slice(slice);
  }
  return trace.events();
}

void write_step_trace(const std::filesystem::path& path, const std::string& own_events,
                      Communicator& comm) {
  constexpr std::string_view op = "trace of the step";
  std::vector<double> most = {static_cast<double>(own_events.size())};
  comm.all_reduce_max(most, op);
  const auto block = static_cast<size_t>(most[0]);
  std::string own = own_events;
  own.resize(block, ' ');  // white space between JSON values means nothing
  std::string all(block * static_cast<size_t>(comm.size()), ' ');
  comm.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)), op);
  if (comm.rank() != 0) return;
  std::vector<std::string> of_ranks;
  for (int rank = 0; rank < comm.size(); ++rank) {
    of_ranks.push_back(all.substr(static_cast<size_t>(rank) * block, block));
  }
  std::filesystem::create_directories(path.parent_path());
  write_text_atomic(path, ChromeTrace::document(of_ranks));
}

}  // namespace longspan
