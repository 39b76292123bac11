#include <CLI/CLI.hpp>

#include <iostream>

#include "base/error.h"
#include "checkpoint/export_checkpoint.h"
#include "checkpoint/step_folder.h"
#include "verbs.h"

namespace longspan {
namespace {

struct ExportArguments {
  std::string checkpoint;
  std::string to;
  std::string dtype = "float32";
  double shard_gb = 5;
  std::string carried_from;
};

StoredDtype parse_dtype(const std::string& name) {
  if (name == "float32") return StoredDtype::kF32;
  if (name == "bfloat16") return StoredDtype::kBF16;
  if (name == "float64") return StoredDtype::kF64;
  throw UserError(text("--dtype ", name, ": one of float32, bfloat16, float64"));
}

int export_verb(const ExportArguments& arguments) {
  // Written so that nan fails; 1 TB is beyond any file that one would copy.
  if (!(arguments.shard_gb >= 1e-9 && arguments.shard_gb <= 1e3)) {
    throw UserError(text("--shard-gb ", arguments.shard_gb, ": must be from 1e-9 to 1000"));
  }
  const auto checkpoint = resolve_checkpoint(arguments.checkpoint);
  export_checkpoint(checkpoint, arguments.to,
                    {.dtype = parse_dtype(arguments.dtype),
                     .max_shard_bytes = static_cast<int64_t>(arguments.shard_gb * 1e9),
                     .carried_from = arguments.carried_from});
  std::cout << checkpoint.string() << " -> " << arguments.to << " (" << arguments.dtype << ")"
            << std::endl;
  return 0;
}

}  // namespace

void add_export(CLI::App& app, VerbRunner& run) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* verb =
      app.add_subcommand("export", "Write a checkpoint as a Hugging Face model folder");
  verb->add_option("checkpoint", arguments->checkpoint, "Checkpoint, or run folder for its latest")
      ->required();
  verb->add_option("--to", arguments->to, "Folder to write; must not exist")->required();
  verb->add_option("--dtype", arguments->dtype, "float32, bfloat16 or float64");
  verb->add_option("--shard-gb", arguments->shard_gb, "Largest safetensors file, in GB");
  verb->add_option(
      "--carried-from", arguments->carried_from,
      "Model folder to take untrained parts from, if the one the run began with moved");
  verb->callback([arguments, &run] { run = [arguments] { return export_verb(*arguments); }; });
}

}  // namespace longspan
