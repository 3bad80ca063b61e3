#pragma once
#include "core/comm/communicator.hpp"
#include "core/params/tokens.hpp"

namespace tessera {

/// Decides gradient clipping c = g min(1, clip / (|g| + 1e-6)), for Reduced::clipped(). The norm |g| counts each
/// element of all ranks' slices once. It leaves out those of counted buckets of `layout`, which are no slopes. The
/// norm's sum of squares is exact, so the bits depend on no order, cut or rank count. `also`, integers (i64, any), is
/// summed over ranks beside it. Skip is set on all ranks if on any rank an element is not finite, or if the norm is
/// above *limit. A word of `not_finite` (u64 [n, any], first column; empty: none) that is set on any rank does the
/// same. `words` (i64 [ExactSum::words]), `result` and `limit` lie on the device; clip 0: no clipping. Orders on
/// `stream`. Collective over the world.
void decide_clipping(Stream& stream, const Reduced& gradients, const ParamLayout& layout, Communicator& world,
                     const Tensor& words, ClipResult* result, float clip, const float* limit,
                     const Tensor& not_finite = {}, const Tensor& also = {});

}  // namespace tessera
