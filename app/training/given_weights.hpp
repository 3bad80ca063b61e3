#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/deck/deck.hpp"

namespace tessera {

/// Stored weights (checkpoint or Hugging Face folder), to evaluate, to generate with or to start a run from.
struct GivenWeights {
  std::filesystem::path path;
  std::unique_ptr<TensorSource> source;
  RunConfig config;            ///< of the run that saved them; of a Hugging Face folder model and compute alone
  StateCounters counters;      ///< of that run when it saved
  std::string content_digest;  ///< empty for a format that has none
};

/// Opens a step folder, the newest valid step of a run directory, or a Hugging Face folder. Throws the same Error{file}
/// on all ranks. Collective.
GivenWeights open_weights(const std::string& path, Control& control, const hdf5::Parallel* parallel = nullptr);

/// Why a plan's model cannot take them: keys that no tensor shows, and tensors, a line each. Local.
Problems problems_with_weights(const GivenWeights& given, const RunPlan& plan, const Fit& fit);

/// The same for a run that starts with them as checkpoint.init_from and its companions say.
Problems problems_with_starting(const GivenWeights& given, const Deck& deck, const RunPlan& plan);

}  // namespace tessera
