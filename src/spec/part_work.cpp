#include "spec/part_work.h"

#include <algorithm>

#include "base/check.h"
#include "spec/parameter_table.h"

namespace longspan {
namespace {

constexpr double kIdBytes = 4;
constexpr double kAttentionBackward = 2.5;  // the flash convention: scores are computed again

double as_double(int64_t value) {
  return static_cast<double>(value);
}

// Sums, decays and states are float32 beside narrow activations, and as wide beside wide ones.
double accumulator_bytes(int64_t value_bytes) {
  return as_double(std::max<int64_t>(4, value_bytes));
}

class Parts {
 public:
  Parts(const ModelSpec& spec, const ModelWork& work, int64_t value_bytes)
      : spec_(spec),
        work_(work),
        value_(as_double(value_bytes)),
        sum_(accumulator_bytes(value_bytes)) {
    LONGSPAN_CHECK(work.tokens > 0, "work of ", work.tokens, " tokens");
  }

  std::vector<PartWork> list() {
    add(PartKind::kProducts, spec_.num_layers, products());
    add(PartKind::kAttention, spec_.count_layers(MixKind::kAttention), attention());
    add(PartKind::kLinearAttention, spec_.count_layers(MixKind::kLinearAttention),
        linear_attention());
    const int64_t sparse = spec_.count_layers(MixKind::kSparseAttention);
    add(PartKind::kIndexScoring, sparse, index_scoring());
    add(PartKind::kSparseAttention, sparse, sparse_attention());
    if (spec_.hyper.streams > 1) add(PartKind::kStreams, spec_.num_layers, streams());
    const int64_t experts = spec_.count_expert_layers();
    add(PartKind::kRouter, experts, router());
    add(PartKind::kExperts, experts, experts_work());
    return std::move(parts_);
  }

 private:
  struct BothPasses {
    PassWork forward;
    PassWork backward;
  };

  void add(PartKind kind, int64_t layers, const BothPasses& work) {
    if (layers > 0) parts_.push_back({kind, layers, work.forward, work.backward});
  }
  double per_token(double count) const { return count / as_double(work_.tokens); }

  // The mean layer's, with its share of the head: all weights that multiply every token. A matrix
  // of in x out weights reads in values and writes out.
  BothPasses products() const {
    const ExpertSpec& experts = spec_.experts;
    const double layers = as_double(spec_.num_layers);
    const int64_t routed =
        spec_.hidden_size * (experts.num_experts + 3 * experts.top_k * experts.width);
    const double weights =
        as_double(matrix_weights(spec_) - spec_.count_expert_layers() * routed) / layers;
    const double bytes = as_double(product_rows()) * value_ / layers;
    return {{2 * weights, bytes}, {4 * weights, 2 * bytes}};
  }

  int64_t product_rows() const {
    const ParameterTable table(spec_);
    int64_t rows = 0;
    for (const Parameter& parameter : table.parameters()) {
      const bool multiplies = parameter.shape.size() == 2 && parameter.expert_block < 0;
      if (multiplies) rows += parameter.shape[0] + parameter.shape[1];
    }
    const int64_t embedding = spec_.tied_embeddings ? 0 : spec_.hidden_size + spec_.vocab_size;
    const int64_t routers =
        spec_.count_expert_layers() * (spec_.hidden_size + spec_.experts.num_experts);
    return rows - embedding - routers;
  }

  BothPasses attention() const {
    const LatentAttentionSpec& mla = spec_.latent_attention;
    const int64_t heads = spec_.num_query_heads;
    const int64_t pair_width =
        spec_.is_hybrid() ? mla.num_heads * (mla.qk_dim() + mla.v_dim) : 2 * spec_.query_width();
    const double flops = per_token(2 * as_double(pair_width) * work_.pairs);
    const double rows = as_double(2 * spec_.query_width() + 2 * spec_.kv_width()) * value_ +
                        as_double(heads) * sum_;
    return {{flops, rows}, {kAttentionBackward * flops, 2 * rows}};
  }

  // In chunks of 64 tokens; backward makes a chunk's matrices again.
  BothPasses linear_attention() const {
    const LinearAttentionSpec& kda = spec_.linear_attention;
    const double width = as_double(kda.width());
    const double flops = width * as_double(10 * kLinearChunk + 6 * kda.head_dim);
    const double inputs = 3 * width * value_ + width * sum_ + as_double(kda.num_heads) * value_;
    const double output = width * value_;
    return {{flops, inputs + output}, {3 * flops, 2 * inputs + output}};
  }

  // A query scores pools / tokens of them and keeps a list of the best.
  BothPasses index_scoring() const {
    const IndexSpec& index = spec_.index;
    const double flops =
        per_token(2 * as_double(index.num_heads * index.head_dim) * work_.scored_pools);
    const double query = as_double(index.num_heads * (index.head_dim + 1)) * value_;
    const double key =
        as_double(index.head_dim) * value_ / as_double(std::max<int64_t>(1, index.pool));
    const double list = as_double(index.pool > 0 ? index.selected_pools() : 0) * (sum_ + kIdBytes);
    return {{flops, query + key + list}, {}};
  }

  BothPasses sparse_attention() const {
    const LatentAttentionSpec& mla = spec_.latent_attention;
    const double keys = per_token(work_.selected_pairs);
    const double latent = as_double(mla.latent_width());
    const double heads = as_double(mla.num_heads);
    const double flops = 4 * keys * latent * heads;
    const double query = heads * latent * value_;
    return {{flops, keys * latent * value_ + 2 * query + heads * sum_},
            {kAttentionBackward * flops,
             keys * latent * (value_ + 2 * sum_) + 3 * query + 2 * heads * sum_}};
  }

  // Two sites, attention's and the feed-forward part's. Each reads the streams for its input, and
  // reads and writes them for its output.
  BothPasses streams() const {
    const double row = as_double(spec_.hidden_size) * value_;
    const double all = as_double(spec_.hyper.streams) * row;
    const double maps =
        as_double(spec_.hyper.streams * spec_.hyper.streams + 2 * spec_.hyper.streams);
    const double flops = 2 * 2 * maps * as_double(spec_.hidden_size);
    return {{flops, 2 * (3 * all + 2 * row)}, {2 * flops, 2 * (6 * all + 3 * row)}};
  }

  BothPasses router() const {
    const double flops = 2 * as_double(spec_.hidden_size * spec_.experts.num_experts);
    const double bytes =
        as_double(spec_.hidden_size) * value_ + as_double(spec_.experts.top_k) * (sum_ + kIdBytes);
    return {{flops, bytes}, {2 * flops, 2 * bytes}};
  }

  BothPasses experts_work() const {
    const ExpertSpec& experts = spec_.experts;
    const double flops =
        6 * as_double(spec_.hidden_size) * as_double(experts.width) * as_double(experts.top_k);
    const double rows =
        as_double(experts.top_k) * as_double(2 * spec_.hidden_size + 4 * experts.width) * value_;
    return {{flops, rows}, {2 * flops, 2 * rows}};
  }

  const ModelSpec& spec_;
  const ModelWork& work_;
  double value_;
  double sum_;
  std::vector<PartWork> parts_;
};

}  // namespace

std::string_view part_name(PartKind kind) {
  switch (kind) {
    case PartKind::kProducts:
      return "products with weights";
    case PartKind::kAttention:
      return "attention";
    case PartKind::kLinearAttention:
      return "linear attention";
    case PartKind::kIndexScoring:
      return "index scoring";
    case PartKind::kSparseAttention:
      return "sparse attention";
    case PartKind::kStreams:
      return "residual streams";
    case PartKind::kRouter:
      return "router";
    case PartKind::kExperts:
      return "experts";
  }
  throw InternalError("unknown part");
}

std::vector<PartWork> part_work(const ModelSpec& spec, const ModelWork& work, int64_t value_bytes) {
  return Parts(spec, work, value_bytes).list();
}

}  // namespace longspan
