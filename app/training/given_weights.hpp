#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/deck/deck.hpp"

namespace tessera {

/// Stored weights (checkpoint or Hugging Face folder), for evaluation, generation, or the start of a run.
struct GivenWeights {
  std::filesystem::path path;
  std::unique_ptr<TensorSource> source;
  RunConfig config;            ///< of the run that saved them; of a Hugging Face folder only model and compute
  StateCounters counters;      ///< of that run at the save
  std::string content_digest;  ///< empty for a format without digests
};

/// Opens a step folder, the newest valid step of a run directory, or a Hugging Face folder. Throws the same Error{file}
/// on all ranks. Collective over the world.
GivenWeights open_weights(const std::string& path, Control& control, const hdf5::Parallel* parallel = nullptr);

/// Problems with loading the weights into a plan's model, a line each: differing keys that have no tensor, and tensors.
/// Local.
Problems problems_with_weights(const GivenWeights& given, const RunPlan& plan, const Fit& fit);

/// The same for a run that starts from the weights, by checkpoint.init_from and the keys that go with it. Local.
Problems problems_with_starting(const GivenWeights& given, const Deck& deck, const RunPlan& plan);

}  // namespace tessera
