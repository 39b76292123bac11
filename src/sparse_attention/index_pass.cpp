#include "sparse_attention/index_pass.h"

#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <limits>

#include "attention/round_exchange.h"
#include "base/check.h"
#include "device/device.h"

namespace longspan {
namespace {

constexpr int64_t kTagsPerLeg = kTagsPerIndexPass / 2;

}  // namespace

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

void IndexPass::add_lists(const std::vector<Range>& rows, const at::TensorOptions& options) {
  const at::ScalarType sums = accumulate_type(at::typeMetaToScalarType(options.dtype()));
  for (const Range& range : rows) {
    if (range.empty()) continue;
    const at::Tensor scores =
        at::full({range.size(), shape_.top_pools}, -std::numeric_limits<double>::infinity(),
                 options.dtype(sums));
    lists_.add(range,
               {scores, at::full({range.size(), shape_.top_pools}, -1, options.dtype(at::kInt))});
  }
}

void IndexPass::score(const AttentionTask& task, PoolRanking& ranking) const {
  if (!shape_.must_choose(task.queries.end - 1)) return;
  const Range query_line = layout_.to_line(task.document, task.queries);
  const Range pool_range = axis_.pools(layout_.to_line(task.document, task.keys));
  std::vector<RankedPools> pools;
  for (const RowStore::Piece& piece : pools_.find(pool_range)) {
    pools.push_back({pools_.views(piece)[0], piece.line.begin - axis_.first_pool(task.document)});
  }
  const int64_t document_begin = layout_.document(task.document).begin;
  for (const RowStore::Piece& of_lists : lists_.find(query_line)) {
    for (const RowStore::Piece& of_queries : queries_.find(of_lists.line)) {
      const std::vector<at::Tensor> inputs = queries_.views(of_queries);
      const std::vector<at::Tensor>& lists = lists_.tensors(of_lists.source);
      const int64_t row = of_lists.rows.begin + of_queries.line.begin - of_lists.line.begin;
      const int64_t rows = of_queries.line.size();
      ranking.score({inputs[0],
                     inputs[1],
                     {lists[0].narrow(0, row, rows), lists[1].narrow(0, row, rows)},
                     of_queries.line.begin - document_begin},
                    pools);
    }
  }
}

void IndexPass::finish_back(const Range& line, const std::vector<at::Tensor>& lists,
                            PoolRanking& ranking) const {
  for (const RowStore::Piece& piece : lists_.find(line)) {
    const std::vector<at::Tensor> into = lists_.views(piece);
    const int64_t row = piece.line.begin - line.begin;
    const int64_t rows = piece.line.size();
    ranking.merge({lists[0].narrow(0, row, rows), lists[1].narrow(0, row, rows)},
                  {into[0], into[1]});
  }
}

// A list that was sent on is gone: what arrives later for its query must not meet it again.
void IndexPass::forget(const Transfer& moved) const {
  for (const RowStore::Piece& piece : lists_.find(moved.line)) {
    const std::vector<at::Tensor> views = lists_.views(piece);
    views[0].fill_(-std::numeric_limits<double>::infinity());
    views[1].fill_(-1);
  }
}

void IndexPass::exchange_and_score(const at::Tensor& q_TJD, const at::Tensor& weights_TJ) {
  const at::ScalarType type = q_TJD.scalar_type();
  const ServerPlan& server = plan_.servers[static_cast<size_t>(comm_.rank())];
  const std::vector<Round> out_rounds = pool_rounds();
  // Indices travel as the narrow type, scores as the accumulation type of a message.
  RoundExchange out(out_rounds,
                    {{RowKind::kQuery, 0, {shape_.heads, shape_.width}},
                     {RowKind::kQuery, 1, {shape_.heads}},
                     {RowKind::kKeyValue, 0, {shape_.width}}},
                    {type, type}, comm_, q_TJD.device(), options_.tag, options_.op + ", out");
  RoundExchange back(plan_.back,
                     {{RowKind::kQuery, 0, {shape_.top_pools}, MessageField::Type::kAccumulate},
                      {RowKind::kQuery, 1, {shape_.top_pools}, MessageField::Type::kCompute}},
                     {at::kInt, accumulate_type(type)}, comm_, q_TJD.device(),
                     options_.tag + kTagsPerLeg, options_.op + ", back");
  const std::unique_ptr<PoolRanking> ranking =
      make_pool_ranking(shape_, q_TJD.options(), options_.work_bytes);
  size_t next_group = 0;
  const auto run_groups = [&](int finished_rounds) {
    for (; next_group < server.groups.size(); ++next_group) {
      const LaunchGroup& group = server.groups[next_group];
      if (group.after_round > finished_rounds) return;
      for (int64_t task = group.task_begin; task < group.task_end; ++task) {
        score(server.tasks[static_cast<size_t>(task)], *ranking);
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
      finish_back(arrival.line, arrival.tensors, *ranking);
    }
  }
}

at::Tensor IndexPass::run(const at::Tensor& q_TJD, const at::Tensor& weights_TJ,
                          const RowStore& pool_keys) {
  const c10::NoGradGuard no_grad;
  const Range piece = layout_.piece(plan_.chunk, comm_.rank());
  pools_ = pool_keys;
  add_lists({piece}, q_TJD.options());
  add_lists(away_rows(plan_, layout_, comm_.rank(), RowKind::kQuery), q_TJD.options());
  exchange_and_score(q_TJD.contiguous(), weights_TJ.contiguous());
  const at::Tensor lists = piece.empty() ? at::Tensor() : lists_.rows(piece)[1];
  return selected_pools(shape_, layout_, piece, lists, shape_.top_pools, q_TJD.device());
}

}  // namespace longspan
