#pragma once
#include "kernels/quantize/codes.cuh"
#include "kernels/quantize/draws.hpp"

/// Random bytes of a patch.
namespace tessera::quantizer::device {

/// The random bytes of a patch's elements, in shared memory. Each warp draws for its own rows and reads them alone.
class Draws {
 public:
  struct Memory {
    alignas(16) std::uint32_t word[patch_edge][patch_edge / 4];
  };
  __device__ explicit Draws(Memory& memory) : memory_(memory) {}

  /// Draws those of one side, in place of those before. All lanes of a warp call it.
  __device__ void fill(const Descriptor& d, const Patch& p, Side side, const Seat& seat) const {
    const RandomKey key = draw_key(d, side);
    __syncwarp();
    if (d.matrix.columns % 16 != 0) {
      fill_runs(key, d, p, seat);
    } else if (const int column = seat.column / 16 * 16; d.rows != nullptr) {
      fill_blocks(key, seat, [&](int row) { return index(d, p, row, column); });
    } else {
      const std::uint64_t first = draw_index(d, p, 0) + static_cast<std::uint64_t>(column);
      fill_blocks(key, seat, [&](int row) { return first + static_cast<std::uint64_t>(row * d.matrix.columns); });
    }
    __syncwarp();
  }
  /// Those of four columns from `column`, a multiple of four.
  __device__ std::uint32_t four(int row, int column) const { return memory_.word[row][column / 4]; }
  /// Of four columns of a row, the bytes of columns c and c + 2, c even or odd, in the low bytes of a word's halves.
  __device__ static std::uint32_t along_row(std::uint32_t four, int c) {
    return __byte_perm(four, 0, c % 2 == 0 ? 0x4240 : 0x4341);
  }
  /// The same of columns c and c + 1, c even.
  __device__ static std::uint32_t neighbours(std::uint32_t four, int c) {
    return __byte_perm(four, 0, c % 4 == 0 ? 0x4140 : 0x4342);
  }
  /// The same of column c, of four columns of two rows.
  __device__ static std::uint32_t along_column(std::uint32_t four, std::uint32_t below, int c) {
    return __byte_perm(four, below, static_cast<unsigned>(c % 4) * 0x0101u + 0x0400u) & 0x00FF00FFu;
  }

 private:
  static constexpr int at_once = 4;

  /// The canonical index of the thread's first column in a row; rows behind the last one repeat it.
  __device__ static std::uint64_t index(const Descriptor& d, const Patch& p, int row, int column) {
    return draw_index(d, p, row < p.rows ? row : p.rows - 1) + static_cast<std::uint64_t>(column);
  }

  /// Where each Philox block serves two lanes: one of them makes those of the even rows, one those of the odd rows.
  /// Four blocks go through the rounds together, so that they share the round's key and hide each other's latency.
  template <class Index>
  __device__ void fill_blocks(const RandomKey& key, const Seat& seat, const Index& index_of) const {
    const int column = seat.column / 16 * 16, first = seat.row + seat.column / run % 2;
#pragma unroll 1
    for (int r = 0; r < height; r += 2 * at_once) {
      PhiloxBlock block[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) block[i] = draw_counter(key, index_of(first + r + 2 * i) / 16);
      PhiloxKey of_round(key.seed);
#pragma unroll
      for (int round = 0; round < philox_rounds; ++round, of_round.advance())
#pragma unroll
        for (PhiloxBlock& x : block) x = philox_round(x, of_round);
#pragma unroll
      for (int i = 0; i < at_once; ++i)
        *reinterpret_cast<uint4*>(&memory_.word[first + r + 2 * i][column / 4]) =
            make_uint4(block[i].word[0], block[i].word[1], block[i].word[2], block[i].word[3]);
    }
  }
  /// Where rows do not begin with a block: each lane makes both blocks that its eight columns may lie in.
  __device__ void fill_runs(const RandomKey& key, const Descriptor& d, const Patch& p, const Seat& seat) const {
#pragma unroll 1
    for (int r = 0; r < height; ++r) {
      const std::uint64_t begin = index(d, p, seat.row + r, seat.column);
      const PhiloxBlock first = draw_block(key, begin / 16), second = draw_block(key, (begin + run - 1) / 16);
      std::uint32_t* const to = &memory_.word[seat.row + r][seat.column / 4];
#pragma unroll
      for (int w = 0; w < run / 4; ++w) {
        std::uint32_t word = 0;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const std::uint64_t i = begin + static_cast<std::uint64_t>(4 * w + c);
          word |= byte_of(i / 16 == begin / 16 ? first : second, i) << (8 * c);
        }
        to[w] = word;
      }
    }
  }

  Memory& memory_;
};

}  // namespace tessera::quantizer::device
