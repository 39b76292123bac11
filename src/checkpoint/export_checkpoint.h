// Turns a checkpoint into a Hugging Face model folder: `longspan export CHECKPOINT --to DIR`.
//
//   export_checkpoint(resolve_checkpoint("runs/a"), "out", {.dtype = StoredDtype::kBF16});
//
// The checkpoint carries config.json and the tokenizer files in its folder model/, so nothing else
// is needed, but for a model with parts that are not trained here: their tensors are not in the
// checkpoint, which only names the folder that the run began with. Parameters are read one at a
// time: memory is that of the largest. One process, one thread; UserErrors name file and tensor,
// and nothing half-written stays.
#pragma once

#include <filesystem>
#include <vector>

#include "checkpoint/hf_model.h"
#include "checkpoint/train_state.h"
#include "spec/model_spec.h"

namespace longspan {

// What a save attaches so that this works: config.json of the model, the companion files of the
// folder it came from (empty path: of none), and where tensors of untrained parts are, if the run
// began with weights (empty path: with random ones).
std::vector<AttachedFile> model_files(const ModelSpec& spec,
                                      const std::filesystem::path& model_folder,
                                      const std::filesystem::path& weights_folder = {});

// options.companions are added to those in the checkpoint; options.carried_from takes the place of
// the folder that the checkpoint names; options.expert_group is of no effect.
void export_checkpoint(const std::filesystem::path& step_folder, const std::filesystem::path& to,
                       HfExportOptions options);

}  // namespace longspan
