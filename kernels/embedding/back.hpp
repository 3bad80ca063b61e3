#pragma once
#include "kernels/embedding/embedding.hpp"

/// What a back end does faster than the portable kernels of embedding.cpp, to the same bits. False, with nothing done:
/// these serve.
namespace tessera::embedding {

/// dtokens from positions by token: `order` and `offsets` as sort_by_key() makes them.
bool token_gradient(Stream& stream, const Gradient& dtokens, const Tensor& order, const Tensor& offsets,
                    const Tensor& dy);
bool position_gradient(Stream& stream, const Gradient& dpositions, const Tensor& dy);

}  // namespace tessera::embedding
