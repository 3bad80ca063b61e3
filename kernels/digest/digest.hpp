#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/base/stream.hpp"

namespace tessera {

constexpr std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}
constexpr std::uint64_t fnv1a64(std::string_view text) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return h;
}
/// Text of digests and hashes: 16 lower-case hex digits.
std::string hex(std::uint64_t value);

/// Adds the digest of a tensor's piece: *sum += sum_i mix64(bits_i xor (first + i + 1) phi) mod 2^64, bits
/// zero-extended, `first` being the index of the piece's first element. `sum` lies on the device. Pieces add up to the
/// digest of the tensor, whatever their cuts, order or ranks.
void digest(Stream& stream, std::uint64_t* sum, const Tensor& data, std::uint64_t first);

/// The same for a matrix [M, columns] of which the first `valid` columns count; row m, column v has index
/// (first_row + m) * valid + v.
void digest_rows(Stream& stream, std::uint64_t* sum, const Tensor& data, std::int64_t valid, std::uint64_t first_row);

}  // namespace tessera
