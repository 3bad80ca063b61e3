#pragma once
#include "core/comm/communicator.hpp"
#include "core/params/tokens.hpp"

namespace tessera {

/// c = g min(1, clip / (|g| + 1e-6)), |g| over every owner's slices, each element once; the coefficient is left for the
/// optimizer to multiply by. The sum of squares is exact, so it depends on no order, cut or rank count; a non-finite
/// element sets skip, on all ranks alike, and so do a norm above *limit and `not_finite` (u64 [1]; empty: none) of any
/// rank. `words` (i64 [ExactSum::words]), `result` and `limit` lie on the device; clip 0: no clipping. Collective over
/// the world.
Clipped clip(Stream& stream, Reduced&& gradients, Communicator& world, const Tensor& words, ClipResult* result,
             float clip, const float* limit, const Tensor& not_finite = {});

}  // namespace tessera
