#include "train/store_state.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "base/error.h"
#include "base/random.h"
#include "checkpoint/export_checkpoint.h"
#include "checkpoint/step_folder.h"
#include "comm/run_ranks.h"
#include "formats/test_folder.h"
#include "spec/presets.h"

namespace longspan {
namespace {

const AdamWOptions kAdamW;

ModelSpec tiny_spec() {
  ModelSpec spec;
  spec.vocab_size = 19;
  spec.hidden_size = 8;
  spec.intermediate_size = 12;
  spec.num_layers = 2;
  spec.num_query_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = 4;
  spec.max_position_embeddings = 64;
  return spec;
}

double random_value(std::string_view what, const std::string& name, int64_t element) {
  return RandomStream(7, text(what, " ", name), static_cast<uint64_t>(element)).normal();
}

void fill_random(ParameterStore& store, Communicator& comm) {
  fill_weights(store, comm, "fill",
               [&](ParameterId id, Range elements, const RealSpan& destination) {
                 const std::string& name = store.parameters()[static_cast<size_t>(id)].name;
                 std::visit(
                     [&](auto values) {
                       using Real = std::remove_cvref_t<decltype(values[0])>;
                       for (int64_t e = 0; e < elements.size(); ++e) {
                         values[static_cast<size_t>(e)] =
                             static_cast<Real>(random_value("weight", name, elements.begin + e));
                       }
                     },
                     destination);
               });
}

// One step whose gradients, given by the first rank that holds a unit, are the same for every mesh.
void take_step(ParameterStore& store, int64_t step) {
  for (int64_t unit = 0; unit < store.layout().num_units(); ++unit) {
    const UnitHolders holders = store.layout().holders(unit);
    if (!holders.contain(store.rank())) continue;
    store.open_gradients(unit);
    const Range ids = store.layout().unit_parameters(unit);
    for (int64_t id = ids.begin; id < ids.end && store.rank() == holders.first; ++id) {
      const std::string& name = store.parameters()[static_cast<size_t>(id)].name;
      at::Tensor& gradient = store.gradient(id);
      for (int64_t e = 0; e < gradient.numel(); ++e) {
        gradient.data_ptr<float>()[e] +=
            static_cast<float>(random_value(text("gradient ", step), name, e));
      }
    }
    store.reduce_gradients(unit, "reduce");
    store.close_gradients(unit);
  }
  store.step(kAdamW, 0.01, 0.0, text("step ", step));
}

// All weights and moments as this rank owns them, by kind and parameter, then by element.
using StateValues = std::map<std::string, std::map<int64_t, double>>;

void collect(ParameterStore& store, StateValues& values) {
  for (int64_t unit = 0; unit < store.layout().num_units(); ++unit) {
    const OwnedState state = store.owned(unit);
    const std::pair<const char*, RealSpan> kinds[] = {{"weights", state.weights},
                                                      {"first moment", state.first_moment},
                                                      {"second moment", state.second_moment}};
    for (const FlatSlice& slice : store.layout().slices(unit, state.flat)) {
      const std::string& name = store.parameters()[static_cast<size_t>(slice.parameter)].name;
      for (const auto& [kind, array] : kinds) {
        std::map<int64_t, double>& elements = values[text(kind, " ", name)];
        const int64_t begin = slice.flat_begin - state.flat.begin;
        std::visit(
            [&](auto owned) {
              for (int64_t e = 0; e < slice.elements.size(); ++e) {
                elements[slice.elements.begin + e] =
                    static_cast<double>(owned[static_cast<size_t>(begin + e)]);
              }
            },
            array);
      }
    }
  }
}

struct Mesh {
  int ranks;
  int64_t shard_group;
  int64_t expert_group = 1;
};

SaveRequest request_of(ParameterStore& store, const ModelSpec& spec, int64_t step) {
  return {.progress = {.step = step, .updates = store.updates()},
          .run = {},
          .parameters = parameter_records(store.parameters()),
          .arrays = state_arrays(store),
          .files = model_files(spec, {})};
}

// Trains `steps` steps on a mesh, from the latest checkpoint if there is one, saves and collects.
StateValues train(const ModelSpec& spec, const std::filesystem::path& run_folder, Mesh mesh,
                  int64_t steps) {
  StateValues values;
  std::mutex values_mutex;
  const ParameterTable table(spec, mesh.expert_group);
  run_ranks(mesh.ranks, {.stall_timeout_s = 60}, [&](Communicator& comm) {
    ParameterStore store(table.parameters(), comm,
                         {.shard_group = mesh.shard_group, .expert_group = mesh.expert_group});
    int64_t step = 0;
    if (latest_step(run_folder)) {
      SavedState saved(resolve_checkpoint(run_folder));
      load_state(store, comm, saved);
      step = saved.manifest().progress.step;
    } else {
      fill_random(store, comm);
    }
    comm.barrier("all have looked for the latest checkpoint");
    for (const int64_t end = step + steps; step < end; ++step) take_step(store, step);
    save_train_state(comm, run_folder, request_of(store, spec, step));
    const std::scoped_lock lock(values_mutex);
    collect(store, values);
  });
  return values;
}

// Two layers with six experts each: an expert group of 4 has blocks of one and of two.
ModelSpec tiny_expert_spec() {
  ModelSpec spec = preset_spec("glm53_flash_tiny");
  spec.num_layers = 3;
  spec.layer_kinds.resize(3);
  spec.vocab_size = 11;
  spec.hidden_size = 8;
  spec.intermediate_size = 8;
  spec.linear_attention.num_heads = 1;
  spec.linear_attention.head_dim = 4;
  spec.hyper.streams = 2;
  spec.experts.num_experts = 6;
  spec.experts.width = 4;
  return spec;
}

// Gradients come from one rank and clipping is off, so nothing is rounded differently: the bits are
// equal even across meshes.
TEST(StoreState, ResumeOnAnyMeshGoesOnWithTheSameBits) {
  const TestFolder test;
  const StateValues uninterrupted = train(tiny_spec(), test / "whole", {1, 1}, 4);
  const std::vector<Mesh> meshes = {{1, 1}, {3, 3}, {4, 2}};
  for (const Mesh& first : meshes) {
    for (const Mesh& second : meshes) {
      SCOPED_TRACE(
          text(first.ranks, "/", first.shard_group, " -> ", second.ranks, "/", second.shard_group));
      const auto folder = test / text("run", first.ranks, second.ranks);
      train(tiny_spec(), folder, first, 2);
      EXPECT_TRUE(train(tiny_spec(), folder, second, 2) == uninterrupted);
      EXPECT_EQ(latest_step(folder), 4);
      EXPECT_EQ(read_manifest(step_path(folder, 4)).progress.updates, 4);
    }
  }
}

// Experts move to other units with the expert group, and to ranks that did not hold them.
TEST(StoreState, ResumeWithAnotherExpertGroupGoesOnWithTheSameBits) {
  const TestFolder test;
  const ModelSpec spec = tiny_expert_spec();
  const StateValues uninterrupted = train(spec, test / "whole", {1, 1}, 4);
  const std::vector<Mesh> meshes = {{1, 1, 1}, {2, 1, 2}, {4, 4, 4}, {4, 1, 2}};
  for (const Mesh& first : meshes) {
    for (const Mesh& second : meshes) {
      SCOPED_TRACE(text(first.ranks, "/", first.shard_group, "/", first.expert_group, " -> ",
                        second.ranks, "/", second.shard_group, "/", second.expert_group));
      const auto folder =
          test / text("run", first.ranks, first.expert_group, second.ranks, second.expert_group);
      train(spec, folder, first, 2);
      EXPECT_TRUE(train(spec, folder, second, 2) == uninterrupted);
    }
  }
}

TEST(StoreState, ExportsOfStoreAndCheckpointAreTheSameBytesAndLoadBack) {
  const TestFolder test;
  const ParameterTable table(tiny_spec());
  run_ranks(4, {.stall_timeout_s = 60}, [&](Communicator& comm) {
    ParameterStore store(table.parameters(), comm, {.shard_group = 2});
    fill_random(store, comm);
    take_step(store, 0);
    export_weights(store, comm, tiny_spec(), test / "live", {});
    const auto checkpoint = save_train_state(comm, test / "run", request_of(store, tiny_spec(), 1));
    if (comm.rank() == 0) export_checkpoint(checkpoint, test / "saved", {});

    ParameterStore loaded(table.parameters(), comm, {.shard_group = 4});
    load_hf_weights(loaded, comm, test / "live");
    for (int64_t unit = 0; unit < store.layout().num_units(); ++unit) {
      store.gather(unit, "compare");
      loaded.gather(unit, "compare");
      const Range ids = store.layout().unit_parameters(unit);
      for (int64_t id = ids.begin; id < ids.end; ++id) {
        EXPECT_TRUE(store.weight(id).equal(loaded.weight(id)));
      }
      store.release(unit);
      loaded.release(unit);
    }
  });
  for (const char* name : {"model.safetensors", "config.json"}) {
    EXPECT_EQ(read_text(test / "live" / name), read_text(test / "saved" / name)) << name;
  }
}

TEST(StoreState, AFolderOfAnotherModelIsEveryRanksUserError) {
  const TestFolder test;
  const ParameterTable table(tiny_spec());
  ModelSpec wider = tiny_spec();
  wider.intermediate_size = 16;
  const ParameterTable wider_table(wider);
  run_ranks(2, {.stall_timeout_s = 60}, [&](Communicator& comm) {
    ParameterStore store(table.parameters(), comm, {.shard_group = 2});
    export_weights(store, comm, tiny_spec(), test / "out", {});
    EXPECT_THROW(export_weights(store, comm, tiny_spec(), test / "out", {}), UserError);
    ParameterStore other(wider_table.parameters(), comm, {});
    EXPECT_THROW(load_hf_weights(other, comm, test / "out"), UserError);
  });
}

}  // namespace
}  // namespace longspan
