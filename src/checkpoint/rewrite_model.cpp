// rewrite_model FROM TO [DTYPE [EXPERT_GROUP [SHARD_BYTES]]]: reads a model folder and writes it
// again as an export would (DTYPE F32, BF16 or F64), for the test that loads both with
// transformers.
#include <iostream>
#include <string>
#include <vector>

#include "checkpoint/hf_model.h"
#include "spec/hf_config.h"

namespace longspan {
namespace {

void rewrite(const std::filesystem::path& from, const std::filesystem::path& to,
             const HfExportOptions& options) {
  const ModelSpec spec = load_hf_config(from);
  const ParameterTable table(spec, options.expert_group);
  const HfWeights weights(from, spec, table.parameters());
  HfModelWriter writer(to, spec, options);
  for (size_t id = 0; id < table.parameters().size(); ++id) {
    std::vector<double> values(static_cast<size_t>(table.parameters()[id].elements()));
    weights.read(static_cast<int64_t>(id), {0, std::ssize(values)}, std::span(values));
    writer.write(static_cast<int64_t>(id), std::span(values));
  }
  writer.finish();
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 2 || arguments.size() > 5) {
    std::cerr << "usage: rewrite_model FROM TO [DTYPE [EXPERT_GROUP [SHARD_BYTES]]]\n";
    return 2;
  }
  try {
    longspan::HfExportOptions options{.carried_from = arguments[0]};
    if (arguments.size() > 2) {
      options.dtype = longspan::dtype_from_name(arguments[2]).value_or(options.dtype);
    }
    if (arguments.size() > 3) options.expert_group = std::stoll(arguments[3]);
    if (arguments.size() > 4) options.max_shard_bytes = std::stoll(arguments[4]);
    longspan::rewrite(arguments[0], arguments[1], options);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
