#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kernels/quantize/quantize.hpp"

namespace tessera {

/// What `tessera quantize` is asked for.
struct QuantizeFileOptions {
  std::filesystem::path in;          ///< safetensors or HDF5
  std::filesystem::path out;         ///< HDF5; must not exist
  std::vector<std::string> tensors;  ///< names; none: every matrix and stack of matrices
  FormatId format{};
  Precision precision = Precision::bf16_first;
  std::int64_t panel_elements = std::int64_t{1} << 24;  ///< about what is held at a time
};

/// How well one tensor survived, over the rowwise copy where there is one, else over the columnwise one; errors are
/// those against the values in the file. Numbers that do not exist (no error, no signal) are NaN.
struct TensorReport {
  std::string name, format;
  Shape shape;
  std::vector<std::string> directions;          ///< of "rowwise", "columnwise"
  double snr_db = 0;                            ///< 10 log10(sum x^2 / sum (x - q)^2), finite x
  double max_rel_error = 0;                     ///< max |x - q| / |x|, finite x other than 0
  double zeros = 0, saturated = 0;              ///< shares of elements stored as zero, and at the largest magnitude
  std::map<int, std::int64_t> scale_exponents;  ///< blocks by floor(log2(scale)); zero_scale: scale 0
};
inline constexpr int zero_scale = -1000;

struct SkippedTensor {
  std::string name, reason;
};

struct QuantizeReport {
  std::vector<TensorReport> tensors;
  std::vector<SkippedTensor> skipped;
  /// One JSON object: {tensors: [...], skipped: [...]}. A zero scale has the key "zero"; NaN is null.
  std::string json() const;
  /// For people: two lines a tensor, the second with its blocks by scale.
  std::string text() const;
};

/// Quantizes the tensors of a file into a new HDF5 file: a group of its name each, with rowwise_data, rowwise_scales,
/// columnwise_data, columnwise_scales, amax and attributes, as README.md of this folder shows. Streams: memory depends
/// on panel_elements alone. Bytes of a checkpoint are compared with their digests first. Writes OUT.tmp, locked and
/// with its space taken before anything else, and renames it; on failure nothing is left. Throws Error{file} for inputs
/// and destinations, with path, tensor and rule, and Error{environment} where the output cannot be written.
QuantizeReport quantize_file(const QuantizeFileOptions& options);

/// The same file by several processes, `out` itself and the bytes of `in` taken at their word: one makes it, with its
/// space and without content; then each fills in its part of the tensors, dealt by size, and syncs it. Local; throw
/// alike.
void make_quantized_file(const QuantizeFileOptions& options);
void fill_quantized_file(const QuantizeFileOptions& options, int part, int parts);

}  // namespace tessera
