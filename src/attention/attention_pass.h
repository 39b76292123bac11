// Runs one attention plan on one rank, operation by operation.
//
// Why: the step schedule decides when rows are sent, tasks are launched and results merged; a pass
// knows how. It keeps what is in flight and nothing after it: servers remember nothing between
// forward and backward.
//
//   AttentionForwardPass pass(plan, layout, comm, {.shape = shape, .type = at::kFloat, .tag = tag,
//                                                  .op = "attention forward, layer 3"});
//   pass.begin(q_THK, keys);  // own piece of the chunk; {k, v} of own pieces of chunks <= chunk,
//   and
//                             // of resident rows
//   pass.start_out(0);  pass.run_group(0);  pass.finish_out(0);  pass.run_group(1);
//   pass.start_back(0); pass.finish_back(0);
//   auto [o_THK, lse_TH] = pass.finish();
//
// Rounds of a leg start and finish in order, groups run in order. A group needs the out rounds
// before its after_round finished; the back leg needs all groups run. Rows are read where they lie:
// with one rank nothing is copied. Parts of a row are merged in the order: own part, then by round,
// then by source, so the same calls give the same bits. LSE, partial O and gradients are float32,
// in a float64 run float64; whole results leave in the type of the inputs, and rows of which
// nothing is summed are made in it.
//
// Plan, layout and communicator must outlive the pass; the tags [tag, tag + 1024) are its own.
// Thread contract: the rank's thread; tasks use its torch threads.
#pragma once

#include <string>
#include <vector>

#include "attention/attention_buffers.h"
#include "attention/round_exchange.h"
#include "attention/row_store.h"
#include "kernels/attention_shape.h"
#include "kernels/cpu/blocked_attention.h"

namespace longspan {

struct AttentionPassOptions {
  AttentionShape shape;
  at::ScalarType type = at::kFloat;  // of q, k, v, dO; on CPU float32 or float64
  int64_t tag = 0;
  std::string op;  // names the pass in errors and stall reports
  at::Device device = at::kCPU;
};

// What a row of each kind carries on each leg.
struct AttentionPassFields {
  std::vector<MessageField> out;
  std::vector<MessageField> back;
};

// The steps that both directions share.
class AttentionPass {
 public:
  virtual ~AttentionPass() = default;
  AttentionPass(const AttentionPass&) = delete;
  AttentionPass& operator=(const AttentionPass&) = delete;

  void start_out(int round);
  void finish_out(int round);
  void run_group(int64_t group);
  void start_back(int round);
  void finish_back(int round);

  // {k, v} of all key rows that are here by now: those of begin() and those that arrived. Rows that
  // a later plan of the same band declares resident come from here.
  const RowStore& key_rows() const { return key_inputs_; }

 protected:
  // Results of rows of one kind: own rows and those of others that pass through here.
  struct Results {
    RowStore rows;
    std::vector<std::vector<int64_t>> row_shapes;  // by tensor
    std::vector<double> empty_values;              // of a row without any part, by tensor
  };

  AttentionPass(const AttentionPlan& plan, const TokenLayout& layout, Communicator& comm,
                const AttentionPassOptions& options, const AttentionPassFields& fields);

  virtual void launch(const std::vector<AttentionSlice>& slices, const RowStore& queries,
                      const RowStore& keys) = 0;
  // What a launch reads of these query rows, and where it writes.
  virtual RowStore launch_queries(const std::vector<Range>& lines) const {
    return join(query_inputs_, query_results_.rows, lines);
  }
  virtual void arrived(const RowMessage::Arrival&) {}
  // Adds a part of the same rows to a result, both {o, lse}, {dq} or {dk, dv}.
  virtual void merge(const std::vector<at::Tensor>& result,
                     const std::vector<at::Tensor>& part) = 0;

  void begin_inputs(std::vector<at::Tensor> own_queries, const RowStore& keys);
  // Makes the results of own rows, and of rows of others, empty at first.
  void add_own_results();
  std::vector<at::Tensor> add_away_results(RowKind kind);
  // Own rows of the first result tensor, in the compute type; of the others.
  at::Tensor own_result() const;
  const std::vector<at::Tensor>& other_own_results() const { return own_.others; }
  int64_t own_result_bytes() const;
  Results& results(RowKind kind) { return kind == RowKind::kQuery ? query_results_ : key_results_; }
  Range own_piece() const { return layout_.piece(plan_.chunk, rank_); }
  const AttentionBufferSizes& expected_buffers() const { return expected_; }
  bool sends_queries() const;
  void check_finished() const;

  const AttentionPassOptions options_;
  Results query_results_;
  Results key_results_;  // backward only

 private:
  // Of the own piece, whole: rows of `whole` that have one part, rows of `sums` that have several.
  struct OwnResults {
    at::Tensor whole;  // of the first tensor, in the compute type; undefined if all are sums
    at::Tensor sums;
    std::vector<at::Tensor> others;
    std::vector<Range> summed;
  };

  std::vector<Range> single_part_rows() const;
  std::vector<Range> rows_of(const LaunchGroup& group, RowKind kind) const;
  std::vector<AttentionSlice> slices_of(const LaunchGroup& group, const RowStore& queries,
                                        const RowStore& keys) const;
  void forget(const Transfer& moved);
  const ServerPlan& server() const { return plan_.servers[static_cast<size_t>(rank_)]; }

  const AttentionPlan& plan_;
  const TokenLayout& layout_;
  const int rank_;
  const AttentionBufferSizes expected_;
  RowStore query_inputs_;
  RowStore key_inputs_;
  OwnResults own_;
  RoundExchange out_;
  RoundExchange back_;
  bool begun_ = false;
  int64_t num_groups_run_ = 0;
};

class AttentionForwardPass : public AttentionPass {
 public:
  AttentionForwardPass(const AttentionPlan& plan, const TokenLayout& layout, Communicator& comm,
                       const AttentionPassOptions& options);

  void begin(const at::Tensor& q_THK, const RowStore& keys);

  struct Result {
    at::Tensor o_THK;
    at::Tensor lse_TH;
  };
  Result finish();

 private:
  void launch(const std::vector<AttentionSlice>& slices, const RowStore& queries,
              const RowStore& keys) override;
  void merge(const std::vector<at::Tensor>& result, const std::vector<at::Tensor>& part) override;
};

class AttentionBackwardPass : public AttentionPass {
 public:
  AttentionBackwardPass(const AttentionPlan& plan, const TokenLayout& layout, Communicator& comm,
                        const AttentionPassOptions& options);

  struct Inputs {
    at::Tensor q_THK;
    at::Tensor o_THK;
    at::Tensor lse_TH;
    at::Tensor d_o_THK;
  };
  // dK and dV of own rows are added to `d_keys` ({dK, dV}, holding at least the own rows that tasks
  // see), some at once, the rest until finish(); it must outlive the pass.
  void begin(const Inputs& inputs, const RowStore& keys, const RowAccumulator& d_keys);

  at::Tensor finish();  // dQ

 private:
  void launch(const std::vector<AttentionSlice>& slices, const RowStore& queries,
              const RowStore& keys) override;
  RowStore launch_queries(const std::vector<Range>& lines) const override;
  void arrived(const RowMessage::Arrival& arrival) override;
  void merge(const std::vector<at::Tensor>& result, const std::vector<at::Tensor>& part) override;

  const bool reads_outputs_;  // the kernels want O
  RowStore outputs_;          // {O}: own rows; of others, rows made from dO and delta
};

}  // namespace longspan
