#pragma once
#include <filesystem>
#include <memory>

#include "io/convert/model_stream.hpp"

namespace tessera {

/// Which tensors of a checkpoint a conversion takes along.
enum class Extent { all, weights };

/// A checkpoint as a source. finish() compares digests: wrong bytes are an Error{file} with the tensor's name.
std::unique_ptr<ModelReader> read_checkpoint(const std::filesystem::path& folder, Extent extent);

/// A new checkpoint folder of that name, committed as a run's own are. Without optimizer state it has no optimizer.h5.
/// Values that are not finite are refused like a run's (Error{numerical}).
std::unique_ptr<ModelWriter> write_checkpoint(const std::filesystem::path& path, const ModelFacts& facts);

}  // namespace tessera
