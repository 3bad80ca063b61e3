#pragma once
#include <filesystem>
#include <memory>

#include "io/convert/hf_codes.hpp"
#include "io/convert/hf_names.hpp"
#include "io/convert/model_stream.hpp"

namespace tessera {

inline constexpr const char* hf_single_file = "model.safetensors";
inline constexpr const char* hf_index_file = "model.safetensors.index.json";

/// Whether a folder is a Hugging Face model: it has a config.json and is not a checkpoint of this program.
bool is_hf_folder(const std::filesystem::path& path);

/// The folder that a path means: of Hugging Face, or of a step, as find_checkpoint() finds it. Throws as that does; of
/// a path that may be a name on Hugging Face's hub, which is not fetched, the error says what to do.
std::filesystem::path find_weights(const std::filesystem::path& path);

/// The type in which a folder's model computes: bf16 if all its weights are, else fp32, so that no weight is rounded.
Compute compute_of(const std::vector<StateTensor>& weights);

/// Opens a Hugging Face folder. Its tensors must be those of its configuration, in fp32, bf16 or fp16 (read as fp32).
/// Throws Error{file} with a line for each tensor that is missing, extra, or of another shape or type. So it does for a
/// tied head that differs from the embedding. Counters are those of step 0; the origin holds model and parent, and no
/// companions, which hf_companions() reads.
std::unique_ptr<ModelReader> read_hf_folder(const std::filesystem::path& path);

/// Begins a new Hugging Face folder with the weights among facts.tensors. They go into safetensors files of at most
/// `shard_bytes` each, or of one tensor if that is larger. It begins with the origin's companions. With `codes` the
/// weights that training multiplies as codes are those codes, whatever is written of them.
std::unique_ptr<ModelWriter> write_hf_folder(const std::filesystem::path& path, const ModelFacts& facts,
                                             std::int64_t shard_bytes, const std::optional<CodesOptions>& codes = {});

}  // namespace tessera
