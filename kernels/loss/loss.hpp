#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// The target of a row that counts in no loss.
inline constexpr std::int32_t no_target = -1;

/// Cross-entropy of logits [M, Vpad] (compute type) with targets i32 [M] over the first `vocabulary` columns. *sum (a
/// double on the device) += sum over rows of -log softmax(logits)[target], softmax in fp32 (fp64). Rows are added in a
/// fixed order whatever the number of threads. `dlogits` (may be empty, may be logits) = scale (softmax - onehot), zero
/// in padded columns, rounded once. A row whose target is no_target adds 0 and has gradient 0. `scale`: f64 [1] on the
/// device, which is read where there are dlogits. Takes one value a row from arena.temp(), released on return.
void cross_entropy(Stream& stream, Arena& arena, double* sum, const Tensor& dlogits, const Tensor& logits,
                   const Tensor& targets, std::int64_t vocabulary, const Tensor& scale = {});

}  // namespace tessera
