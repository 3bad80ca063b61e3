#pragma once
#include <array>

#include "io/convert/quantize_file.hpp"
#include "io/convert/tensor_file.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {

/// Where the arrays of one quantized tensor begin in the output file.
struct QuantizedPlaces {
  struct Side {
    bool made = false;
    std::int64_t data = 0, scales = 0;
  };
  std::array<Side, 2> sides;  ///< rowwise, columnwise
  std::int64_t amax = 0;
};

/// A tensor and what it is quantized to.
struct ChosenTensor {
  SourceTensor source;
  FormatId format{};
  std::int64_t rows = 0;  ///< of each matrix that is made; those behind the source's are zeros, a vocabulary's padding

  /// Shape of the matrices that are made: [rows, K], of one matrix or of each member of a stack [E, M, K].
  formats::Matrix matrix() const { return {rows, source.shape[-1]}; }
  std::int64_t members() const { return source.shape.rank() == 3 ? source.shape[0] : 1; }
};

/// Arguments for quantizing one tensor from file to file, member by member and panel by panel.
struct QuantizeStep {
  const ChosenTensor& tensor;
  const PosixFile& in;
  PosixFile& out;
  const QuantizedPlaces& places;
  const QuantizeFileOptions& options;
};

/// Quantizes a tensor, writes its arrays, and returns its quantization error. Local.
TensorReport quantize_tensor(const QuantizeStep& step);

}  // namespace tessera
