#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "io/convert/stored_model.hpp"

namespace tessera {

/// What a conversion writes.
enum class Target { tessera, safetensors };
template <>
struct Names<Target> {
  static constexpr Name<Target> table[] = {{Target::tessera, "tessera"}, {Target::safetensors, "safetensors"}};
};

/// What `tessera checkpoint convert` is asked for.
struct ConvertOptions {
  std::filesystem::path from;            ///< a checkpoint, a run directory, or a Hugging Face folder
  std::filesystem::path to;              ///< a folder that must not exist
  std::optional<ExpertWeights> experts;  ///< layout in the files; none: as they lie
  std::optional<DType> type;             ///< of the weights, f32 or bf16; none: f32, in safetensors as they are
  Extent extent = Extent::all;
  Target target = Target::tessera;
  std::int64_t shard_bytes = 5'000'000'000;  ///< most that one safetensors file holds
  Origin program;                            ///< version, git_sha, libraries, command_line and hosts of this conversion
  std::int64_t block_elements = std::int64_t{1} << 22;  ///< what is held at a time, twice
};

struct ConvertReport {
  std::filesystem::path from, to;
  Target target = Target::tessera;
  std::int64_t step = 0, tensors = 0, elements = 0, bytes = 0;  ///< bytes: of payload
  ExpertWeights experts = ExpertWeights::single;  ///< of a checkpoint
  DType type = DType::f32;                        ///< of the weights
  std::optional<std::string> content_digest;      ///< of a checkpoint
  std::string json() const;
  std::string text() const;
};

/// Rewrites a model, tensor by tensor and in pieces: memory does not depend on its size. Bytes of a checkpoint are
/// verified on the way; fp32 into fp32 with all its state keeps the content digest. The destination appears whole, by
/// a rename, or not at all. Throws Error{file} for sources and taken destinations, Error{environment} where the disk
/// fails.
ConvertReport convert_checkpoint(const ConvertOptions& options);

}  // namespace tessera
