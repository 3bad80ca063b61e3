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

/// One tensor on its way from file to file: member by member, panel by panel.
struct QuantizeStep {
  const SourceTensor& tensor;
  const PosixFile& in;
  PosixFile& out;
  const QuantizedPlaces& places;
  const QuantizeFileOptions& options;
};

/// The tensor as members of matrices: [M, K] or [E, M, K].
formats::Matrix matrix_of(const SourceTensor& tensor);
std::int64_t members_of(const SourceTensor& tensor);

/// Quantizes, writes, and says how well it went.
TensorReport quantize_tensor(const QuantizeStep& step);

}  // namespace tessera
