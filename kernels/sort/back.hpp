#pragma once
#include "kernels/base/arena.hpp"
#include "kernels/sort/sort.hpp"

/// What each back end sorts by itself.
namespace tessera::sorting {

/// order [n] = the positions of keys [n] by ascending key, equal keys by ascending position; keys have `bits` bits, at
/// least one. Takes temporaries, as many on a dry stream, from arena.temp() and leaves them to the caller's frame.
void positions_by_key(Stream& stream, Arena& arena, std::int32_t* order, const std::int32_t* keys, std::int64_t n,
                      int bits);

}  // namespace tessera::sorting
