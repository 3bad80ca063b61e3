#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/deck/deck.hpp"

namespace tessera {

/// Weights that some run left, to evaluate or to start another with.
struct GivenWeights {
  std::filesystem::path path;
  std::unique_ptr<TensorSource> source;
  RunConfig config;            ///< of the run that left them; of another program's, model and precision.compute alone
  StateCounters counters;      ///< of that run, as it stood
  std::string content_digest;  ///< empty for a format that has none
};

/// Opens a step folder, the newest valid step of a run directory, or a Hugging Face folder. Throws the same Error{file}
/// on all ranks. Collective.
GivenWeights open_weights(const std::string& path, Control& control, const hdf5::Parallel* parallel = nullptr);

/// What keeps a plan's model from taking them: keys that no tensor shows, and tensors, a line each. Local.
Problems against(const GivenWeights& given, const RunPlan& plan, const Fit& fit);

/// The same for a run that starts with them as checkpoint.init_from and its companions say.
Problems against_starting(const GivenWeights& given, const Deck& deck, const RunPlan& plan);

}  // namespace tessera
