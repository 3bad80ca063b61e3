#pragma once
#include <cstdint>
#include <vector>

#include "kernels/base/stream.hpp"

namespace tessera {

/// Sizes of one training step, the same on every rank.
struct StepSizes {
  std::int64_t length = 0;            ///< tokens of a sequence
  std::int64_t global = 0;            ///< sequences of the step, over all ranks
  std::int64_t micro = 0;             ///< sequences of a micro-batch
  std::int64_t rounds = 1;            ///< micro-batches of each rank; in the last round ranks may be idle (padding)
  std::int64_t activation_bytes = 0;  ///< size of the activation arena
  std::vector<Workspace> workspaces;  ///< workspaces of kernels and libraries
  std::int64_t again = 0;             ///< sequences of other ranks that a spot check computes; 0 without spot checks
  bool positions = false;             ///< whether batches say each token's place in its document
  std::int64_t recorded_layers = 0;   ///< layers with experts whose routing is recorded; 0: none is
  std::int64_t experts = 0;           ///< of each of them
  std::int64_t mixtures = 0;          ///< layers with experts
  std::int64_t top_k = 0;             ///< experts that a token visits in each of them
  bool given = false;                 ///< whether batches say which
  std::int64_t kept_rounds = 0;       ///< first micro-batches of each rank whose choices of experts are reported

  std::int64_t local() const { return rounds * micro; }  ///< sequences on each rank, padding included
  std::int64_t micro_batches() const { return global / micro; }
  std::int64_t slots() const { return micro * length * top_k; }  ///< of a micro-batch in a layer with experts
};

}  // namespace tessera
