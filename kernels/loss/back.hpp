#pragma once
#include "kernels/loss/loss.hpp"

/// A back end's faster versions of the portable kernels in loss.cpp. They return false, having done nothing, if there
/// is none.
namespace tessera::loss {

/// losses [M] (fp32), and dlogits unless that is empty, as cross_entropy() makes them; on a stream that is not dry.
bool row_losses(Stream& stream, const Tensor& losses, const Tensor& dlogits, const Tensor& logits,
                const Tensor& targets, std::int64_t vocabulary, const Tensor& scale);

/// *sum += losses [M], in a fixed order; on a stream that is not dry.
bool add_losses(Stream& stream, double* sum, const Tensor& losses);

}  // namespace tessera::loss
