#pragma once
#include "kernels/embedding/embedding.hpp"

/// A back end's faster versions of the portable kernels in embedding.cpp, with the same bits. They return false, with
/// nothing done, if there is none.
namespace tessera::embedding {

bool forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& tokens, const Tensor& positions);
/// dtokens from the positions of each token; `order` and `offsets` come from sort_by_key().
bool token_gradient(Stream& stream, const Gradient& dtokens, const Tensor& order, const Tensor& offsets,
                    const Tensor& dy);
bool position_gradient(Stream& stream, const Gradient& dpositions, const Tensor& dy);

}  // namespace tessera::embedding
