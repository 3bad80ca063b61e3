#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "core/config/config.hpp"
#include "kernels/formats/id.hpp"

namespace tessera {

class Checkpoint;

/// A weight that training multiplies as codes of one format.
struct TrainedWeight {
  FormatId format{};
  std::int64_t rows = 0;  ///< of a member in memory, the vocabulary's padding included
};
/// By canonical name.
using TrainedWeights = std::map<std::string, TrainedWeight>;

/// The weights of a config's model whose codes training holds, or would hold with precision.primary_weights quantized:
/// those with one format for both of their products. Local.
TrainedWeights trained_weights(const RunConfig& config);
/// The same of a saved step's run, by its recipe at that step. Throws Error{file} for an unreadable deck. Local.
TrainedWeights trained_weights(const Checkpoint& step);

}  // namespace tessera
