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

/// Arguments for quantizing one tensor from file to file, member by member and panel by panel.
struct QuantizeStep {
  const SourceTensor& tensor;
  const PosixFile& in;
  PosixFile& out;
  const QuantizedPlaces& places;
  const QuantizeFileOptions& options;
};

/// Shape of the tensor's matrices: [M, K], of one matrix or of each member of a stack [E, M, K].
formats::Matrix matrix_of(const SourceTensor& tensor);
std::int64_t members_of(const SourceTensor& tensor);

/// Quantizes a tensor, writes its arrays, and returns its quantization error. Local.
TensorReport quantize_tensor(const QuantizeStep& step);

}  // namespace tessera
