#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// Cross-entropy of logits [M, Vpad] (compute type) with targets i32 [M] over the first `vocabulary` columns. Then *sum
/// (a double on the device) += sum over rows of -log softmax(logits)[target], softmax in fp32 (fp64). Rows are added in
/// a fixed order whatever the number of threads. `dlogits` (may be empty, may be logits) = scale (softmax - onehot),
/// zero in padded columns, rounded once. Takes one value a row from arena.temp(), released on return.
void cross_entropy(Stream& stream, Arena& arena, double* sum, const Tensor& dlogits, const Tensor& logits,
                   const Tensor& targets, std::int64_t vocabulary, double scale);

}  // namespace tessera
