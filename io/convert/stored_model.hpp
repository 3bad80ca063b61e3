#pragma once
#include <filesystem>
#include <memory>

#include "io/convert/model_stream.hpp"

namespace tessera {

/// Which tensors of a checkpoint a conversion reads: all, the weights without optimizer state, or in the place of the
/// weights their moving averages (optimizer.ema).
enum class Extent { all, weights, averages };

/// Opens a checkpoint as the source of a conversion. finish() compares digests; if they differ, it throws Error{file}
/// with the tensor's name.
std::unique_ptr<ModelReader> read_checkpoint(const std::filesystem::path& folder, Extent extent);

/// Begins a new checkpoint folder at `path`, committed like a run's own. Without optimizer state it has no
/// optimizer.h5.
std::unique_ptr<ModelWriter> write_checkpoint(const std::filesystem::path& path, const ModelFacts& facts);

}  // namespace tessera
