#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/convert/hf_codes.hpp"
#include "io/convert/stored_model.hpp"
#include "io/convert/upcycle.hpp"

namespace tessera {

/// The format that a conversion writes.
TESSERA_CHOICE(Target, tessera, safetensors);

/// Options of `tessera checkpoint convert`.
struct ConvertOptions {
  std::filesystem::path from;            ///< a checkpoint, a run directory, or a Hugging Face folder
  std::filesystem::path to;              ///< a folder that must not exist
  std::optional<ExpertWeights> experts;  ///< expert layout in the new files; empty: as in the source
  std::optional<DType> type;  ///< type of the weights, f32 or bf16; empty: f32 for tessera, as stored for safetensors
  Extent extent = Extent::all;
  std::optional<Upcycling> upcycling;  ///< what a dense model becomes; then its weights alone are read
  Target target = Target::tessera;
  std::optional<CodesLayout> codes;  ///< with target safetensors: codes instead of the values that training quantizes
  std::int64_t shard_bytes = 5'000'000'000;  ///< largest size of one safetensors file
  Origin program;                            ///< version, git_sha, libraries, command_line and hosts of this conversion
  std::int64_t block_elements = std::int64_t{1} << 22;  ///< elements of a buffer; two are held
};

struct ConvertReport {
  std::filesystem::path from, to;
  Target target = Target::tessera;
  std::int64_t step = 0, tensors = 0, elements = 0, bytes = 0;  ///< bytes: payload only
  ExpertWeights experts = ExpertWeights::single;  ///< layout in a new checkpoint
  DType type = DType::f32;                        ///< type of the weights
  std::optional<std::string> content_digest;      ///< of a new checkpoint
  std::vector<std::string> told;                  ///< what a user should know besides, a line each
  std::string json() const;
  std::string text() const;
};

/// Converts a model between formats, tensor by tensor and in pieces: memory does not depend on the model's size. A
/// checkpoint's digests are verified while it is read; converting fp32 with all state to fp32 keeps the content digest.
/// The destination appears whole, by a rename, or not at all. Throws Error{file} if the source cannot be read or the
/// destination exists, Error{environment} if the disk fails. Values that are not finite in their new type are an
/// Error{numerical}, as in a run's save. Local.
ConvertReport convert_checkpoint(const ConvertOptions& options);

}  // namespace tessera
