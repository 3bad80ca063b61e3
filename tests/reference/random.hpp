#pragma once
#include <array>
#include <cstdint>

namespace tessera::reference {

/// Philox4x32-10 as its authors write it: rounds of two wide products, the key bumped between them.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// N(0,1) of a canonical index: Box-Muller on the 53-bit uniforms of one Philox block, in long double with
/// the C library's functions.
long double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);

}  // namespace tessera::reference
