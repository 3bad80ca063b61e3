#pragma once
#include "kernels/normalize/normalize.hpp"

/// A back end's faster versions of the portable kernels in normalize.cpp. The caller has checked the arguments; there
/// is at least one row, and the stream is not dry. Each returns false and does nothing where the back end has no faster
/// version for these arguments; the portable kernel runs then.
namespace tessera::normalize {

bool forward(Stream& stream, Norm kind, const NormForward& args);
bool backward(Stream& stream, Norm kind, const NormBackward& args);
/// `weight_parts` and `bias_parts` (empty without a bias) are temporaries [rows / rows_of_part, C], rounded up.
inline constexpr std::int64_t rows_of_part = 32;
bool gradients(Stream& stream, Norm kind, const Gradient& dweight, const Gradient& dbias, const NormBackward& args,
               const Tensor& weight_parts, const Tensor& bias_parts);

}  // namespace tessera::normalize
