#include "plan_report/model_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "cost/part_rates.h"
#include "observe/number_format.h"
#include "plan_report/text_table.h"
#include "spec/kept_bytes.h"
#include "spec/part_work.h"

namespace longspan {
namespace {

constexpr const char* kModes[] = {"layer_inputs_attention", "layer_inputs", "context_only"};

ModelWork work_of(const ModelSpec& spec, const TokenLayout& layout) {
  ModelWork work;
  for (int32_t document = 0; document < layout.num_documents(); ++document) {
    work += document_work(spec, layout.document_tokens(document));
  }
  return work;
}

// Of the ranks that hold tokens.
double tokens_of_rank(const PlanStudy& study) {
  const std::vector<double>& shares = study.request.token_shares;
  const auto holders =
      std::count_if(shares.begin(), shares.end(), [](double share) { return share > 0; });
  return static_cast<double>(study.example.layout.num_tokens()) / static_cast<double>(holders);
}

// Nothing if it was not measured there.
std::optional<BothRates> rates_of(const PlanTarget& target, PartKind kind) {
  const double matrix = target.profile.matrix_flops_per_s;
  if (kind == PartKind::kProducts && matrix > 0) return BothRates{{matrix, 0}, {matrix, 0}};
  const auto rates = part_rates(target.on_gpu ? "h200" : target.profile.name);
  if (!rates) return std::nullopt;
  switch (kind) {
    case PartKind::kLinearAttention:
      return rates->linear_attention;
    case PartKind::kIndexScoring:
      return rates->index_scoring;
    case PartKind::kSparseAttention:
      return rates->sparse_attention;
    case PartKind::kStreams:
      return rates->streams;
    case PartKind::kRouter:
      return rates->router;
    case PartKind::kExperts:
      return rates->experts;
    case PartKind::kProducts:
    case PartKind::kAttention:
      break;
  }
  return std::nullopt;
}

struct PartCost {
  PartWork work;
  std::optional<double> forward_s;  // of all layers, on the busiest rank
  std::optional<double> backward_s;
};

std::vector<PartCost> part_costs(const PlanStudy& study) {
  const PlanTarget& target = study.request.target;
  const double tokens = tokens_of_rank(study);
  std::vector<PartCost> costs;
  for (const PartWork& part :
       part_work(target.model, work_of(target.model, study.example.layout), target.value_bytes)) {
    PartCost cost{.work = part};
    const double layers = static_cast<double>(part.layers);
    if (part.kind == PartKind::kAttention) {
      const double chunks = study.request.chunks;
      cost.forward_s = layers * chunks * study.ours.forward.compute_s;
      cost.backward_s = layers * chunks * study.ours.backward.compute_s;
    } else if (const auto rates = rates_of(target, part.kind)) {
      const double busiest =
          part.kind == PartKind::kIndexScoring ? study.ours.forward.max_over_mean : 1;
      const auto seconds = [&](const PassRate& rate, const PassWork& work) {
        return busiest * layers * tokens * rate.seconds(work.flops, work.bytes);
      };
      cost.forward_s = seconds(rates->forward, part.forward);
      cost.backward_s = seconds(rates->backward, part.backward);
    }
    costs.push_back(cost);
  }
  return costs;
}

std::string ms_or_dash(const std::optional<double>& seconds) {
  return seconds ? three_digits(*seconds * 1e3) : "-";
}

std::string parts_text(const PlanStudy& study) {
  const PlanTarget& target = study.request.target;
  const auto rates = part_rates(target.on_gpu ? "h200" : target.profile.name);
  std::string result =
      text("\nWhat the parts cost a rank of ", fixed_digits(tokens_of_rank(study), 0),
           " tokens in the first batch, all layers\n  ",
           rates ? "rates " + rates->source
                 : text("no measured rates of ", target.profile.name, ": FLOPs and bytes alone"),
           "\n");
  TextTable table(
      {"part", "layers", "GFLOP/token", "backward", "KB/token", "backward", "ms", "backward"});
  for (const PartCost& cost : part_costs(study)) {
    const double layers = static_cast<double>(cost.work.layers);
    const auto giga = [&](double flops) { return three_digits(layers * flops * 1e-9); };
    const auto kilo = [&](double bytes) { return fixed_digits(layers * bytes * 1e-3, 0); };
    table.add({std::string(part_name(cost.work.kind)), text(cost.work.layers),
               giga(cost.work.forward.flops), giga(cost.work.backward.flops),
               kilo(cost.work.forward.bytes), kilo(cost.work.backward.bytes),
               ms_or_dash(cost.forward_s), ms_or_dash(cost.backward_s)});
  }
  return result + table.to_text();
}

std::string kept_text(const PlanStudy& study) {
  const PlanTarget& target = study.request.target;
  const KeptBytes kept = kept_bytes(target.model, target.value_bytes, target.on_gpu);
  const double tokens = tokens_of_rank(study);
  const auto gib_of_rank = [&](int64_t bytes) {
    return fixed_digits(tokens * static_cast<double>(bytes) / (1 << 30), 2);
  };
  TextTable table({"stored mode", "bytes of a token", "GiB of a rank"});
  for (const char* mode : kModes) {
    table.add({mode, text(kept.of_mode(mode)), gib_of_rank(kept.of_mode(mode))});
  }
  std::string result = text("\nWhat a token keeps between forward and backward, all layers\n",
                            table.to_text(), "  of it choices ", kept.choices, " bytes");
  if (kept.chunk_border > 0) {
    result += text("; states at each border of chunks, over all ranks, ",
                   fixed_digits(static_cast<double>(kept.chunk_border) / (1 << 20), 1), " MiB");
  }
  return result + "\n";
}

}  // namespace

std::string model_text(const PlanStudy& study) {
  const bool hybrid = study.request.target.model.is_hybrid();
  return (hybrid ? parts_text(study) : "") + kept_text(study);
}

Json model_json(const PlanStudy& study) {
  const PlanTarget& target = study.request.target;
  Json parts = Json::array();
  for (const PartCost& cost : part_costs(study)) {
    Json part = {{"part", part_name(cost.work.kind)},
                 {"layers", cost.work.layers},
                 {"flops_per_token", cost.work.forward.flops},
                 {"bytes_per_token", cost.work.forward.bytes},
                 {"backward_flops_per_token", cost.work.backward.flops},
                 {"backward_bytes_per_token", cost.work.backward.bytes}};
    if (cost.forward_s) part["forward_s"] = *cost.forward_s;
    if (cost.backward_s) part["backward_s"] = *cost.backward_s;
    parts.push_back(std::move(part));
  }
  const KeptBytes kept = kept_bytes(target.model, target.value_bytes, target.on_gpu);
  Json bytes = Json::object();
  for (const char* mode : kModes) bytes[mode] = kept.of_mode(mode);
  return {{"parts", std::move(parts)},
          {"kept_bytes_per_token", std::move(bytes)},
          {"chunk_border_bytes", kept.chunk_border}};
}

}  // namespace longspan
