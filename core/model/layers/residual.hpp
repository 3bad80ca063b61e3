#pragma once
#include "core/model/layers/call.hpp"
#include "kernels/activation/activation.hpp"

namespace tessera {

/// The residual stream as it enters a norm: x + branch. That norm writes it to `sum`, so that the addition costs no
/// pass over memory of its own. All [M,C]; without a branch the sum is x.
struct Residual {
  Tensor x, branch, sum;

  /// A stream to which nothing is to be added.
  static Residual whole(const Tensor& x) { return {x, {}, x}; }
  /// The same stream once its norm has run.
  Residual summed() const { return whole(sum); }
  std::int64_t rows() const { return x.rows(); }
  Residual row_range(std::int64_t begin, std::int64_t count) const {
    return {x.row_range(begin, count), branch ? branch.row_range(begin, count) : Tensor{}, sum.row_range(begin, count)};
  }
};

/// Makes the sum now; the bits are those that the next norm would have made.
inline Residual sum(const Call& call, const Residual& stream) {
  if (stream.branch) add(call.stream, stream.sum, stream.x, stream.branch);
  return stream.summed();
}

}  // namespace tessera
