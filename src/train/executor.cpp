#include "train/executor.h"

#include <numeric>

#include "base/check.h"
#include "base/narrow.h"
#include "device/beside_queue.h"
#include "model/transformer_model.h"
#include "train/executor_step.h"
#include "train/sequence_mixes.h"

namespace longspan {

namespace {

// Ranks [k E, (k + 1) E) for each k; called by all ranks.
std::unique_ptr<Communicator> connect_experts(Communicator& comm, int64_t expert_group) {
  std::unique_ptr<Communicator> own;
  if (expert_group == 1) return own;
  for (int first = 0; first < comm.size(); first += narrow<int>(expert_group)) {
    std::vector<int> ranks(static_cast<size_t>(expert_group));
    std::iota(ranks.begin(), ranks.end(), first);
    auto group = comm.subgroup(ranks, text("expert group of rank ", first));
    if (group) own = std::move(group);
  }
  return own;
}

}  // namespace

Executor::Executor(const TransformerModel& model, ParameterStore& store, Communicator& comm)
    : model_(model),
      store_(store),
      comm_(comm),
      mixes_(std::make_unique<const SequenceMixes>(model)),
      collective_queue_(std::make_unique<BesideQueue>(model.device())),
      expert_comm_(connect_experts(comm, store.layout().expert_group())) {}

Executor::~Executor() = default;

StepTotals Executor::run(const StepSchedule& schedule,
                         const std::vector<PlannedMicroBatch>& micro_batches,
                         const RunOptions& options) {
  return ExecutorStep({model_, store_, comm_, *mixes_, *collective_queue_, expert_comm_.get()},
                      micro_batches, options)
      .run(schedule);
}

}  // namespace longspan
