#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// logits [M, Vpad] (compute type), targets i32 [M]; only the first `vocabulary` columns take part.
/// *sum (a double on the device) += sum over rows of -log softmax(logits)[target], softmax in fp32 (fp64); rows in a
/// fixed order whatever the number of threads. `dlogits` (may be empty, may be logits) = scale (softmax - onehot), zero
/// in padded columns, rounded once. One value a row from `arena`.temp(), given back on return.
void cross_entropy(Stream& stream, Arena& arena, double* sum, const Tensor& dlogits, const Tensor& logits,
                   const Tensor& targets, std::int64_t vocabulary, double scale);

}  // namespace tessera
