#pragma once
#include "kernels/quantize/codes.cuh"
#include "kernels/quantize/draws.hpp"

/// Random bytes of a thread's part of a patch.
namespace tessera::quantizer::device {

/// Byte c as a number. The byte becomes the low digits of 2^23, since the conversion instruction would be slower.
__device__ inline float drawn(const std::uint32_t (&bytes)[2], int c) {
  return __uint_as_float(__byte_perm(bytes[c / 4], 0x4B000000u, 0x7440u + static_cast<unsigned>(c % 4))) - 0x1p23f;
}

/// The eight random bytes of canonical indices index .. index + 7.
__device__ inline void draw_run(const RandomKey& key, std::uint64_t index, std::uint32_t (&bytes)[2]) {
  const PhiloxBlock first = draw_block(key, index / 16), second = draw_block(key, (index + run - 1) / 16);
  bytes[0] = bytes[1] = 0;
#pragma unroll
  for (int c = 0; c < run; ++c) {
    const std::uint64_t i = index + static_cast<std::uint64_t>(c);
    bytes[c / 4] |= byte_of(i / 16 == index / 16 ? first : second, i) << (8 * (c % 4));
  }
}

/// The random bytes of all the thread's rows. If one Philox block serves two lanes, each lane makes those of every
/// other row and they exchange halves.
__device__ inline void draw_runs(const Descriptor& d, const Patch& p, Side side, const Seat& seat,
                                 std::uint32_t (&bytes)[height][2]) {
  const RandomKey key = draw_key(d, side);
  const auto index = [&](int r) {
    return draw_index(d, p, seat.row + r < p.rows ? seat.row + r : p.rows - 1) +
           static_cast<std::uint64_t>(seat.column);
  };
  if (d.matrix.columns % 16 != 0) {
#pragma unroll
    for (int r = 0; r < height; ++r) draw_run(key, index(r), bytes[r]);
    return;
  }
  const bool odd = seat.column / run % 2 != 0;
#pragma unroll
  for (int r = 0; r < height; r += 2) {
    const PhiloxBlock mine = draw_block(key, index(odd ? r + 1 : r) / 16);
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const std::uint32_t other = __shfl_xor_sync(whole_warp, odd ? mine.word[w] : mine.word[2 + w], 1);
      bytes[r][w] = odd ? other : mine.word[w];
      bytes[r + 1][w] = odd ? mine.word[2 + w] : other;
    }
  }
}

}  // namespace tessera::quantizer::device
