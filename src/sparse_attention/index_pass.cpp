#include "sparse_attention/index_pass.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "attention/round_exchange.h"
#include "base/check.h"
#include "kernels/cpu/index_scoring.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"

namespace longspan {
namespace {

constexpr int64_t kTagsPerLeg = kTagsPerIndexPass / 2;
// Neighbouring queries that one thread scores at a time.
constexpr int64_t kQueryBlock = 64;

}  // namespace

// One scorer for each thread.
template <typename Real>
struct IndexPass::Workers {
  Workers(const IndexShape& shape, int64_t work_bytes) {
    const int64_t threads = at::get_num_threads();
    for (int64_t thread = 0; thread < threads; ++thread) {
      scorers.push_back(std::make_unique<IndexScorer<Real>>(shape, work_bytes / threads));
    }
  }
  std::vector<std::unique_ptr<IndexScorer<Real>>> scorers;
};

IndexPass::IndexPass(const IndexShape& shape, const AttentionPlan& plan, const PoolAxis& axis,
                     const TokenLayout& layout, Communicator& comm, const IndexPassOptions& options)
    : shape_(shape), plan_(plan), axis_(axis), layout_(layout), comm_(comm), options_(options) {
  LONGSPAN_CHECK(std::ssize(plan.servers) == comm.size() && plan.direction == Direction::kForward &&
                     std::ssize(plan.out) <= kTagsPerLeg && std::ssize(plan.back) <= kTagsPerLeg,
                 options.op, ": a plan of ", plan.servers.size(), " servers, ", plan.out.size(),
                 " and ", plan.back.size(), " rounds, for ", comm.size(), " ranks");
  for (const ServerPlan& server : plan.servers) {
    LONGSPAN_CHECK(server.resident_key_rows.empty(), options.op,
                   ": the plan counts on rows that an earlier chunk left");
  }
}

// The out rounds with key rows on the axis of pools.
std::vector<Round> IndexPass::pool_rounds() const {
  std::vector<Round> rounds;
  for (const Round& round : plan_.out) {
    Round translated;
    for (Transfer transfer : round.transfers) {
      if (transfer.kind == RowKind::kKeyValue) transfer.line = axis_.pools(transfer.line);
      if (!transfer.line.empty()) translated.transfers.push_back(transfer);
    }
    rounds.push_back(std::move(translated));
  }
  return rounds;
}

void IndexPass::add_lists(const std::vector<Range>& rows, at::ScalarType type) {
  for (const Range& range : rows) {
    if (range.empty()) continue;
    const at::Tensor scores =
        at::full({range.size(), shape_.top_pools}, -std::numeric_limits<double>::infinity(), type);
    lists_.add(range, {scores, at::full({range.size(), shape_.top_pools}, -1, at::kInt)});
  }
}

template <typename Real>
void IndexPass::score(const AttentionTask& task, Workers<Real>& workers) {
  if (!shape_.must_choose(task.queries.end - 1)) return;
  const Range query_line = layout_.to_line(task.document, task.queries);
  const Range pool_range = axis_.pools(layout_.to_line(task.document, task.keys));
  const auto pool_pieces = pools_.find(pool_range);
  const int64_t document_begin = layout_.document(task.document).begin;
  for (const RowStore::Piece& of_lists : lists_.find(query_line)) {
    for (const RowStore::Piece& of_queries : queries_.find(of_lists.line)) {
      const Range lines = of_queries.line;
      const std::vector<at::Tensor> inputs = queries_.views(of_queries);
      const int64_t list_row = of_lists.rows.begin + lines.begin - of_lists.line.begin;
      const std::vector<at::Tensor>& lists = lists_.tensors(of_lists.source);
      const int64_t blocks = (lines.size() + kQueryBlock - 1) / kQueryBlock;
      const auto threads = std::ssize(workers.scorers);
      // Blocks are dealt out in turn: later queries see more pools.
      parallel_ranges({0, threads}, 1, [&](Range slots) {
        for (int64_t slot = slots.begin; slot < slots.end; ++slot) {
          for (int64_t block = slot; block < blocks; block += threads) {
            const int64_t row = block * kQueryBlock;
            const int64_t count = std::min(kQueryBlock, lines.size() - row);
            const IndexQueries<Real> queries{
                inputs[0].const_data_ptr<Real>() + row * shape_.heads * shape_.width,
                inputs[1].const_data_ptr<Real>() + row * shape_.heads,
                lines.begin + row - document_begin,
                count,
                lists[0].mutable_data_ptr<Real>() + (list_row + row) * shape_.top_pools,
                lists[1].mutable_data_ptr<int32_t>() + (list_row + row) * shape_.top_pools};
            for (const RowStore::Piece& of_pools : pool_pieces) {
              const at::Tensor keys = pools_.tensors(of_pools.source)[0];
              workers.scorers[static_cast<size_t>(slot)]->score(
                  queries,
                  {keys.const_data_ptr<Real>() + of_pools.rows.begin * shape_.width,
                   of_pools.line.begin - axis_.first_pool(task.document), of_pools.line.size()});
            }
          }
        }
      });
    }
  }
}

template <typename Real>
void IndexPass::finish_back(const Range& line, const std::vector<at::Tensor>& lists) {
  for (const RowStore::Piece& piece : lists_.find(line)) {
    const std::vector<at::Tensor> into = lists_.views(piece);
    const int64_t skipped = (piece.line.begin - line.begin) * shape_.top_pools;
    merge_top_pools(shape_, piece.line.size(), lists[0].const_data_ptr<Real>() + skipped,
                    lists[1].const_data_ptr<int32_t>() + skipped, into[0].mutable_data_ptr<Real>(),
                    into[1].mutable_data_ptr<int32_t>());
  }
}

// A list that was sent on is gone: what arrives later for its query must not meet it again.
void IndexPass::forget(const Transfer& moved) {
  for (const RowStore::Piece& piece : lists_.find(moved.line)) {
    const std::vector<at::Tensor> views = lists_.views(piece);
    views[0].fill_(-std::numeric_limits<double>::infinity());
    views[1].fill_(-1);
  }
}

template <typename Real>
void IndexPass::exchange_and_score(const at::Tensor& q_TJD, const at::Tensor& weights_TJ) {
  const at::ScalarType type = q_TJD.scalar_type();
  const ServerPlan& server = plan_.servers[static_cast<size_t>(comm_.rank())];
  const std::vector<Round> out_rounds = pool_rounds();
  // Indices travel as the narrow type, scores as the accumulation type of a message.
  RoundExchange out(out_rounds,
                    {{RowKind::kQuery, 0, {shape_.heads, shape_.width}},
                     {RowKind::kQuery, 1, {shape_.heads}},
                     {RowKind::kKeyValue, 0, {shape_.width}}},
                    {type, type}, comm_, at::kCPU, options_.tag, options_.op + ", out");
  RoundExchange back(plan_.back,
                     {{RowKind::kQuery, 0, {shape_.top_pools}, MessageField::Type::kAccumulate},
                      {RowKind::kQuery, 1, {shape_.top_pools}, MessageField::Type::kCompute}},
                     {at::kInt, type}, comm_, at::kCPU, options_.tag + kTagsPerLeg,
                     options_.op + ", back");
  Workers<Real> workers(shape_, options_.work_bytes);
  size_t next_group = 0;
  const auto run_groups = [&](int finished_rounds) {
    for (; next_group < server.groups.size(); ++next_group) {
      const LaunchGroup& group = server.groups[next_group];
      if (group.after_round > finished_rounds) return;
      for (int64_t task = group.task_begin; task < group.task_end; ++task) {
        score<Real>(server.tasks[static_cast<size_t>(task)], workers);
      }
    }
  };
  queries_.add(layout_.piece(plan_.chunk, comm_.rank()), {q_TJD, weights_TJ});
  for (int round = 0; round < out.num_rounds(); ++round) {
    out.start(round, queries_, pools_);
    run_groups(round);
    for (RowMessage::Arrival& arrival : out.finish(round)) {
      RowStore& rows = arrival.kind == RowKind::kQuery ? queries_ : pools_;
      rows.add(arrival.line, std::move(arrival.tensors));
    }
  }
  run_groups(out.num_rounds());
  for (int round = 0; round < back.num_rounds(); ++round) {
    back.start(round, lists_, lists_);
    for (const Transfer& transfer : plan_.back[static_cast<size_t>(round)].transfers) {
      if (transfer.source == comm_.rank()) forget(transfer);
    }
    for (const RowMessage::Arrival& arrival : back.finish(round)) {
      finish_back<Real>(arrival.line, arrival.tensors);
    }
  }
}

at::Tensor IndexPass::run(const at::Tensor& q_TJD, const at::Tensor& weights_TJ,
                          const RowStore& pool_keys) {
  const c10::NoGradGuard no_grad;
  const Range piece = layout_.piece(plan_.chunk, comm_.rank());
  pools_ = pool_keys;
  add_lists({piece}, q_TJD.scalar_type());
  add_lists(away_rows(plan_, layout_, comm_.rank(), RowKind::kQuery), q_TJD.scalar_type());
  for_real_type(q_TJD.scalar_type(), [&]<typename Real>() {
    exchange_and_score<Real>(q_TJD.contiguous(), weights_TJ.contiguous());
  });
  const int64_t width = shape_.top_pools;
  at::Tensor selected = all_visible_pools(shape_, layout_, piece, width);
  if (piece.empty()) return selected;
  const at::Tensor lists = lists_.rows(piece)[1];
  int32_t* rows = selected.mutable_data_ptr<int32_t>();
  for (const DocumentPart& part : layout_.document_parts(piece)) {
    for (int64_t at = part.line.begin; at < part.line.end; ++at) {
      if (!shape_.must_choose(part.positions.begin + at - part.line.begin)) continue;
      int32_t* row = rows + (at - piece.begin) * width;
      std::copy_n(lists.const_data_ptr<int32_t>() + (at - piece.begin) * width, width, row);
      std::sort(row, row + width);
      LONGSPAN_CHECK(row[0] >= 0, options_.op, ": line position ", at,
                     " has fewer candidates than it chooses: the plan leaves keys out");
    }
  }
  return selected;
}

at::Tensor all_visible_pools(const IndexShape& shape, const TokenLayout& layout, const Range& piece,
                             int64_t width) {
  at::Tensor selected = at::full({piece.size(), width}, -1, at::kInt);
  int32_t* rows = selected.mutable_data_ptr<int32_t>();
  for (const DocumentPart& part : layout.document_parts(piece)) {
    for (int64_t at = part.line.begin; at < part.line.end; ++at) {
      const int64_t position = part.positions.begin + at - part.line.begin;
      if (shape.must_choose(position)) continue;
      for (int64_t pool = 0; pool < shape.visible_pools(position); ++pool) {
        rows[(at - piece.begin) * width + pool] = static_cast<int32_t>(pool);
      }
    }
  }
  return selected;
}

}  // namespace longspan
