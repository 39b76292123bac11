#include "attention/attention_pass.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include "attention/attention_kernel.h"
#include "attention/real_types.h"
#include "base/check.h"
#include "device/device.h"
#include "kernels/packed_tiles.h"

namespace longspan {
namespace {

constexpr int64_t kTagsPerLeg = 256;

// Each leg of each direction has tags of its own.
int64_t leg_tag(const AttentionPlan& plan, int64_t tag, bool back) {
  const int leg = (plan.direction == Direction::kForward ? 0 : 2) + (back ? 1 : 0);
  return tag + leg * kTagsPerLeg;
}

ElementBytes element_bytes(const MessageTypes& types) {
  return {static_cast<int64_t>(c10::elementSize(types.compute)),
          static_cast<int64_t>(c10::elementSize(types.accumulate))};
}

MessageTypes message_types(at::ScalarType type) {
  return {type, accumulate_type(type)};
}

}  // namespace

AttentionPass::AttentionPass(const AttentionPlan& plan, const TokenLayout& layout,
                             Communicator& comm, const AttentionPassOptions& options,
                             const AttentionPassFields& fields)
    : options_(options),
      plan_(plan),
      layout_(layout),
      rank_(comm.rank()),
      expected_(attention_buffer_sizes(plan, layout, comm.rank(), options.shape,
                                       element_bytes(message_types(options.type)))),
      out_(plan.out, fields.out, message_types(options.type), comm, options.device,
           leg_tag(plan, options.tag, false), options.op + ", out"),
      back_(plan.back, fields.back, message_types(options.type), comm, options.device,
            leg_tag(plan, options.tag, true), options.op + ", back") {
  LONGSPAN_CHECK(!options.device.is_cpu() || options.type == accumulate_type(options.type),
                 options.op, ": CPU attention runs in float32 or float64, not ", options.type);
  LONGSPAN_CHECK(std::ssize(plan.servers) == comm.size() && layout.num_ranks() == comm.size(),
                 options.op, ": a plan for ", plan.servers.size(), " ranks and a layout of ",
                 layout.num_ranks(), " on ", comm.size(), " ranks");
  for (const std::vector<Round>* leg : {&plan.out, &plan.back}) {
    LONGSPAN_CHECK(std::ssize(*leg) <= kTagsPerLeg, options.op, ": ", leg->size(), " rounds");
  }
}

void AttentionPass::begin_inputs(std::vector<at::Tensor> own_queries, const RowStore& keys) {
  LONGSPAN_CHECK(!begun_, options_.op, ": begun twice");
  begun_ = true;
  LONGSPAN_CHECK(
      own_queries[0].scalar_type() == options_.type && own_queries[0].device() == options_.device,
      options_.op, ": q is ", own_queries[0].toString(), ", expected ", options_.type, " on ",
      options_.device.str());
  query_inputs_.add(own_piece(), std::move(own_queries));
  key_inputs_ = keys;
}

// On a GPU the fast kernels give results in the type of the inputs. Own rows of which this rank
// computes the whole result at once, in one part, keep it.
std::vector<Range> AttentionPass::single_part_rows() const {
  if (options_.device.is_cpu() || options_.type == accumulate_type(options_.type) ||
      !attention_kernel_for(options_.shape, options_.type, options_.device).fast) {
    return {};
  }
  // Tasks over the keys of their own rows alone stay one part in a launch up to some length, and
  // with one rank and one source of keys at any.
  const bool alone = layout_.num_ranks() == 1 && key_inputs_.num_sources() == 1;
  std::vector<Range> rows;
  for (const AttentionTask& task : server().tasks) {
    const bool of_own_keys = task.queries == task.keys && task.queries.begin == 0 &&
                             (alone || task.queries.size() <= kUnsplitRowsMax);
    const Range line = layout_.to_line(task.document, task.queries);
    if (of_own_keys && own_piece().contains(line) && key_inputs_.find(line).size() == 1) {
      rows.push_back(line);
    }
  }
  return normalize(std::move(rows));
}

void AttentionPass::add_own_results() {
  Results& of_kind = results(RowKind::kQuery);
  const Range piece = own_piece();
  const std::vector<Range> single = single_part_rows();
  own_.summed = subtract(normalize({piece}), single);
  const at::ScalarType sums_type = accumulate_type(options_.type);
  const auto rows_with = [&](size_t idx, at::ScalarType type) {
    std::vector<int64_t> sizes = {piece.size()};
    sizes.insert(sizes.end(), of_kind.row_shapes[idx].begin(), of_kind.row_shapes[idx].end());
    return at::empty(sizes, at::TensorOptions(type).device(options_.device));
  };
  for (size_t idx = 1; idx < of_kind.row_shapes.size(); ++idx) {
    own_.others.push_back(rows_with(idx, sums_type).fill_(of_kind.empty_values[idx]));
  }
  const auto add = [&](const at::Tensor& first, const std::vector<Range>& lines) {
    std::vector<at::Tensor> tensors = {first};
    tensors.insert(tensors.end(), own_.others.begin(), own_.others.end());
    of_kind.rows.add(piece, std::move(tensors), lines);
  };
  if (!single.empty() || piece.empty()) add(own_.whole = rows_with(0, options_.type), single);
  if (own_.summed.empty()) return;
  add(own_.sums = rows_with(0, sums_type), own_.summed);
  for (const Range& line : own_.summed) {
    own_.sums.narrow(0, line.begin - piece.begin, line.size()).fill_(of_kind.empty_values[0]);
  }
}

at::Tensor AttentionPass::own_result() const {
  if (!own_.whole.defined()) return own_.sums.to(options_.type);
  for (const Range& line : own_.summed) {
    const int64_t begin = line.begin - own_piece().begin;
    own_.whole.narrow(0, begin, line.size()).copy_(own_.sums.narrow(0, begin, line.size()));
  }
  return own_.whole;
}

int64_t AttentionPass::own_result_bytes() const {
  int64_t bytes = tensor_bytes(own_.others);
  for (const at::Tensor* rows : {&own_.whole, &own_.sums}) {
    if (rows->defined()) bytes += tensor_bytes({*rows});
  }
  return bytes;
}

std::vector<at::Tensor> AttentionPass::add_away_results(RowKind kind) {
  Results& of_kind = results(kind);
  const std::vector<Range> rows = away_rows(plan_, layout_, rank_, kind);
  const auto options = at::TensorOptions(accumulate_type(options_.type)).device(options_.device);
  std::vector<at::Tensor> tensors;
  for (size_t idx = 0; idx < of_kind.row_shapes.size(); ++idx) {
    std::vector<int64_t> sizes = {total_size(rows)};
    sizes.insert(sizes.end(), of_kind.row_shapes[idx].begin(), of_kind.row_shapes[idx].end());
    tensors.push_back(at::full(sizes, of_kind.empty_values[idx], options));
  }
  int64_t first_row = 0;
  for (const Range& range : rows) {
    std::vector<at::Tensor> views;
    for (const at::Tensor& tensor : tensors) {
      views.push_back(tensor.narrow(0, first_row, range.size()));
    }
    of_kind.rows.add(range, std::move(views));
    first_row += range.size();
  }
  return tensors;
}

void AttentionPass::start_out(int round) {
  const c10::NoGradGuard no_grad;
  LONGSPAN_CHECK(begun_, options_.op, ": not begun");
  out_.start(round, query_inputs_, key_inputs_);
  LONGSPAN_CHECK(out_.message_bytes().back() == expected_.out[static_cast<size_t>(round)],
                 options_.op, ": messages of out round ", round,
                 " have another size than computed");
}

void AttentionPass::finish_out(int round) {
  const c10::NoGradGuard no_grad;
  for (RowMessage::Arrival& arrival : out_.finish(round)) {
    arrived(arrival);
    RowStore& inputs = arrival.kind == RowKind::kQuery ? query_inputs_ : key_inputs_;
    inputs.add(arrival.line, std::move(arrival.tensors));
  }
}

void AttentionPass::run_group(int64_t group_idx) {
  const c10::NoGradGuard no_grad;
  const auto num_groups = std::ssize(server().groups);
  LONGSPAN_CHECK(begun_ && group_idx == num_groups_run_ && group_idx < num_groups, options_.op,
                 ": launch group ", group_idx, " run after ", num_groups_run_, " of ", num_groups);
  const LaunchGroup& group = server().groups[static_cast<size_t>(group_idx)];
  LONGSPAN_CHECK(out_.num_finished() >= group.after_round, options_.op, ": launch group ",
                 group_idx, " needs ", group.after_round, " out rounds, but ", out_.num_finished(),
                 " are finished");
  num_groups_run_ += 1;
  const RowStore queries = launch_queries(rows_of(group, RowKind::kQuery));
  if (plan_.direction == Direction::kForward) {
    return launch(slices_of(group, queries, key_inputs_), queries, key_inputs_);
  }
  const RowStore keys = join(key_inputs_, key_results_.rows, rows_of(group, RowKind::kKeyValue));
  launch(slices_of(group, queries, keys), queries, keys);
}

void AttentionPass::start_back(int round) {
  const c10::NoGradGuard no_grad;
  LONGSPAN_CHECK(num_groups_run_ == std::ssize(server().groups), options_.op, ": back round ",
                 round, " before launch group ", num_groups_run_);
  back_.start(round, query_results_.rows, key_results_.rows);
  LONGSPAN_CHECK(back_.message_bytes().back() == expected_.back[static_cast<size_t>(round)],
                 options_.op, ": messages of back round ", round,
                 " have another size than computed");
  for (const Transfer& transfer : plan_.back[static_cast<size_t>(round)].transfers) {
    if (transfer.source == rank_) forget(transfer);
  }
}

// A moved result is gone: what arrives later for these rows must not meet it again.
void AttentionPass::forget(const Transfer& moved) {
  Results& of_kind = results(moved.kind);
  for (const RowStore::Piece& piece : of_kind.rows.find(moved.line)) {
    const std::vector<at::Tensor> views = of_kind.rows.views(piece);
    for (size_t idx = 0; idx < views.size(); ++idx) views[idx].fill_(of_kind.empty_values[idx]);
  }
}

void AttentionPass::finish_back(int round) {
  const c10::NoGradGuard no_grad;
  for (const RowMessage::Arrival& arrival : back_.finish(round)) {
    const RowStore& rows = results(arrival.kind).rows;
    for (const RowStore::Piece& piece : rows.find(arrival.line)) {
      std::vector<at::Tensor> part;
      for (const at::Tensor& tensor : arrival.tensors) {
        part.push_back(tensor.narrow(0, piece.line.begin - arrival.line.begin, piece.line.size()));
      }
      merge(rows.views(piece), part);
    }
  }
}

bool AttentionPass::sends_queries() const {
  for (const Round& round : plan_.out) {
    for (const Transfer& transfer : round.transfers) {
      if (transfer.source == rank_ && transfer.kind == RowKind::kQuery) return true;
    }
  }
  return false;
}

void AttentionPass::check_finished() const {
  LONGSPAN_CHECK(begun_ && num_groups_run_ == std::ssize(server().groups) &&
                     out_.num_finished() == out_.num_rounds() &&
                     back_.num_finished() == back_.num_rounds(),
                 options_.op, ": finished after ", num_groups_run_, " of ", server().groups.size(),
                 " groups, ", out_.num_finished(), " of ", out_.num_rounds(), " out rounds, ",
                 back_.num_finished(), " of ", back_.num_rounds(), " back rounds");
}

std::vector<Range> AttentionPass::rows_of(const LaunchGroup& group, RowKind kind) const {
  std::vector<Range> rows;
  for (int64_t idx = group.task_begin; idx < group.task_end; ++idx) {
    const AttentionTask& task = server().tasks[static_cast<size_t>(idx)];
    rows.push_back(
        layout_.to_line(task.document, kind == RowKind::kQuery ? task.queries : task.keys));
  }
  return normalize(std::move(rows));
}

// A task becomes one slice for each pair of sources that its rows lie in.
std::vector<AttentionSlice> AttentionPass::slices_of(const LaunchGroup& group,
                                                     const RowStore& queries,
                                                     const RowStore& keys) const {
  std::vector<AttentionSlice> slices;
  for (int64_t idx = group.task_begin; idx < group.task_end; ++idx) {
    const AttentionTask& task = server().tasks[static_cast<size_t>(idx)];
    const auto key_pieces = keys.find(layout_.to_line(task.document, task.keys));
    for (const RowStore::Piece& query :
         queries.find(layout_.to_line(task.document, task.queries))) {
      for (const RowStore::Piece& key : key_pieces) {
        if (key.line.begin >= query.line.end) continue;  // nothing visible
        slices.push_back({task.document, query.source, key.source, query.rows, key.rows,
                          query.line.begin - key.line.begin});
      }
    }
  }
  return slices;
}

}  // namespace longspan
