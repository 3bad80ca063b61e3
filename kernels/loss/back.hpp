#pragma once
#include "kernels/loss/loss.hpp"

/// What a back end does faster than the portable kernel of loss.cpp: false, with nothing done, where it does not.
namespace tessera::loss {

/// losses [M] (fp32), and dlogits unless that is empty, as cross_entropy() makes them; on a stream that is not dry.
bool row_losses(Stream& stream, const Tensor& losses, const Tensor& dlogits, const Tensor& logits,
                const Tensor& targets, std::int64_t vocabulary, double scale);

}  // namespace tessera::loss
