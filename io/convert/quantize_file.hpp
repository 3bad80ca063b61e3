#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "io/convert/trained_weights.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera {

/// Options of `tessera quantize`.
struct QuantizeFileOptions {
  std::filesystem::path in;          ///< safetensors or HDF5
  std::filesystem::path out;         ///< HDF5; must not exist
  std::vector<std::string> tensors;  ///< names; empty: every matrix and stack of matrices, or every trained weight
  /// The format of all, or each weight of a checkpoint's model.h5 as training holds it and nothing else.
  std::variant<FormatId, TrainedWeights> formats;
  Precision precision = Precision::bf16_first;
  std::int64_t panel_elements = std::int64_t{1} << 24;  ///< approximate number of elements held at a time
};

/// Quantization error of one tensor, against the values in the file: of the rowwise copy if there is one, else of the
/// columnwise copy. A quotient without error or without signal is NaN.
struct TensorReport {
  std::string name, format;
  Shape shape;
  std::vector<std::string> directions;          ///< of "rowwise", "columnwise"
  double snr_db = 0;                            ///< 10 log10(sum x^2 / sum (x - q)^2), finite x
  double max_rel_error = 0;                     ///< max |x - q| / |x|, finite x other than 0
  double zeros = 0, saturated = 0;              ///< shares of elements stored as zero, and as the largest magnitude
  double underflow = 0;                         ///< share of elements other than 0 that are stored as zero
  std::int64_t non_finite = 0;                  ///< elements of the source that no error is measured of
  std::map<int, std::int64_t> scale_exponents;  ///< number of blocks by floor(log2(scale)); key zero_scale: scale 0
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

/// Quantizes the tensors of a file into a new HDF5 file. Each tensor becomes a group of its name with rowwise_data,
/// rowwise_scales, columnwise_data, columnwise_scales, amax and attributes, as README.md of this folder shows. Streams:
/// memory depends on panel_elements alone. If the input is a checkpoint's, its digests are verified first. Writes
/// OUT.tmp, which is locked and whose space is reserved beforehand, then renames it; on failure nothing is left. Throws
/// Error{file} for unusable inputs and destinations, with path, tensor and rule, and Error{environment} if the output
/// cannot be written. Local.
QuantizeReport quantize_file(const QuantizeFileOptions& options);

/// The same file made by several processes, directly under the name `out` and without verifying digests of `in`. One
/// process makes the file, with its space reserved and without content. Then each process fills in its part of the
/// tensors, which are dealt by size, and syncs it. Both throw like quantize_file. Local.
void make_quantized_file(const QuantizeFileOptions& options);
void fill_quantized_file(const QuantizeFileOptions& options, int part, int parts);

}  // namespace tessera
