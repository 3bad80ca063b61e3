#pragma once
#include "kernels/loss/loss.hpp"

/// A back end's faster version of the portable kernel in loss.cpp. Returns false, having done nothing, if it has none.
namespace tessera::loss {

/// losses [M] (fp32), and dlogits unless that is empty, as cross_entropy() makes them; on a stream that is not dry.
bool row_losses(Stream& stream, const Tensor& losses, const Tensor& dlogits, const Tensor& logits,
                const Tensor& targets, std::int64_t vocabulary, double scale);

}  // namespace tessera::loss
