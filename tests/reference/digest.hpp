#pragma once
#include <cstdint>
#include <span>

namespace tessera::reference {

/// sum_i mix64(bits_i xor (first + i + 1) phi) mod 2^64 of zero-extended bits (io/checkpoint/FORMAT.md).
std::uint64_t digest(std::span<const std::uint64_t> bits, std::uint64_t first);

}  // namespace tessera::reference
