#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "app/training/start/preparation.hpp"
#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "io/checkpoint/averages.hpp"
#include "io/checkpoint/best.hpp"
#include "io/deck/deck.hpp"

namespace tessera {

/// Stored weights (checkpoint or Hugging Face folder), for evaluation, generation, or the start of a run.
struct GivenWeights {
  std::filesystem::path path;
  std::unique_ptr<TensorSource> source;
  RunConfig config;            ///< of the run that saved them; of a Hugging Face folder only model and compute
  StateCounters counters;      ///< of that run at the save
  std::string content_digest;  ///< empty for a format without digests
  std::string corpus_hash;     ///< of the corpus that it was trained on, as hex(); empty if unknown
  std::int64_t window = 0;     ///< longest sequences within which its attention sees all of them; 0: any
  std::string told;            ///< what a user should know of the reading, as one line, or empty

  /// The files that travel with the weights: one, if it is there, and all. Throws Error{file}. Local.
  std::optional<std::string> companion(const char* name) const;
  Companions companions() const;
};

/// Path of a model's weights: the path given, or for a deck its run directory, whatever else the deck says; of a run
/// directory the chosen step. For rank 0 alone, whose path open_weights() takes: what it tells is told once. Local.
std::string path_of_weights(const std::string& model, Chosen step);

/// Opens weights for one process alone, as the function below does, and says nothing. Local.
GivenWeights open_weights(const std::string& path);

/// Opens a step folder, the newest valid step of a run directory, or a Hugging Face folder, and prints what there is to
/// tell of it. Throws the same Error{file} on all ranks. Collective over the world.
GivenWeights open_weights(const std::string& path, Control& control, const hdf5::Parallel* parallel = nullptr,
                          Taken taken = Taken::trained);

/// Problems with loading the weights into a plan's model, a line each: differing keys that have no tensor, and tensors.
/// Local.
Problems problems_with_weights(const GivenWeights& given, const RunPlan& plan, const Fit& fit);

/// What comes of a run's start from given weights.
struct GivenStart {
  Problems problems;              ///< with the weights, their tokenizer, or the keys that go with checkpoint.init_from
  std::vector<std::string> told;  ///< what a user should know besides, a line each
  Companions companions;          ///< that go on with the run
};
/// Compares the weights with the run's model and with its tokenizer. Local.
GivenStart start_from(const GivenWeights& given, const Prepared& run);

}  // namespace tessera
