#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// Stable radix sort: order [n] i32 = the positions of keys [n] (i32, in [0, K)) by ascending key, equal keys by
/// ascending position. offsets [K+1] i32: positions of key v are order[offsets[v]] to order[offsets[v+1]-1]. K may be
/// 1. Temporaries from arena.temp(), released on return. Orders on `stream`. Local.
void sort_by_key(Stream& stream, Arena& arena, const Tensor& order, const Tensor& offsets, const Tensor& keys);

}  // namespace tessera
