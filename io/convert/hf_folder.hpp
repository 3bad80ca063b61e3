#pragma once
#include <filesystem>
#include <memory>

#include "io/convert/hf_names.hpp"
#include "io/convert/model_stream.hpp"

namespace tessera {

inline constexpr const char* hf_single_file = "model.safetensors";
inline constexpr const char* hf_index_file = "model.safetensors.index.json";

/// Whether a folder is meant for transformers: it has a config.json, and is no checkpoint of this program.
bool is_hf_folder(const std::filesystem::path& path);

/// Opens one. Its tensors must be those of its configuration, in fp32, bf16 or fp16, which becomes fp32: whatever is
/// missing, extra, misshapen or of another type is an Error{file}, a line each. Counters are those of step 0; the
/// origin knows model and parent alone.
std::unique_ptr<ModelReader> read_hf_folder(const std::filesystem::path& path);

/// A new one, of the weights among `facts`, in files of at most `shard_bytes` (or one tensor).
std::unique_ptr<ModelWriter> write_hf_folder(const std::filesystem::path& path, const ModelFacts& facts,
                                             std::int64_t shard_bytes);

}  // namespace tessera
