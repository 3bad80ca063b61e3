#pragma once
// A tile of a bf16 product on tensor cores. For CUDA sources only.
#include <cstdint>

#include "kernels/base/dtype.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// Where one factor of a tile lies. The tile covers rows (of a) or columns (of b) from `first` on; those from `end` on
/// count as zeros. The summed dimension runs over [begin_sum, end_sum). `distance` is the number of elements from one
/// row of memory to the next; distance and pointer are multiples of 16 bytes.
struct TileSource {
  const bf16* data;
  int distance;
  int first, end;
  int begin_sum, end_sum;
};

/// A tile of a product of bf16 matrices on tensor cores: 128 x 128 sums in the registers of four warps, 64 x 64 each.
/// Factors come through three stages of shared memory while earlier ones are multiplied. Equal factors give equal bits.
class TensorTile {
 public:
  static constexpr int m = 128, n = 128, threads = 128;
  static constexpr int depth = 64, stages = 3, stage_elements = (m + n) * depth;
  static constexpr int shared_bytes = stages * stage_elements * 2;

  /// sum = a b over the summed dimension. Stored says how each factor lies in memory: a [m,k] plain or as a^T, b [k,n]
  /// plain or as b^T. Called once, by all threads of the block.
  template <Stored a_stored, Stored b_stored>
  __device__ void multiply(const TileSource& a, const TileSource& b) {
    extern __shared__ __align__(128) unsigned char shared[];
    const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
    const int pieces = (a.end_sum - a.begin_sum + depth - 1) / depth;
    const auto fetch = [&](int piece) {
      if (piece < pieces) {
        const std::uint32_t to = base + static_cast<std::uint32_t>(piece % stages) * stage_elements * 2;
        load<a_stored == Stored::plain>(to, a, a.begin_sum + piece * depth);
        load<b_stored == Stored::transposed>(to + m * depth * 2, b, b.begin_sum + piece * depth);
      }
      asm volatile("cp.async.commit_group;");
    };
    for (int piece = 0; piece < stages - 1; ++piece) fetch(piece);
    for (int piece = 0; piece < pieces; ++piece) {
      asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2));
      __syncthreads();
      fetch(piece + stages - 1);
      const std::uint32_t from = base + static_cast<std::uint32_t>(piece % stages) * stage_elements * 2;
      for (int k = 0; k < depth; k += 16) step<a_stored == Stored::plain, b_stored == Stored::transposed>(from, k);
    }
    asm volatile("cp.async.wait_group 0;");
  }

  /// Calls f(row, column, sum, sum of the next column) for the thread's share of the tile.
  template <class F>
  __device__ void each_pair(const F& f) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int row = warp_row() + 16 * i + lane / 4, column = warp_column() + 8 * j + lane % 4 * 2;
        f(row, column, sum_[i][j][0], sum_[i][j][1]);
        f(row + 8, column, sum_[i][j][2], sum_[i][j][3]);
      }
  }

 private:
  __device__ static int warp_row() { return static_cast<int>(threadIdx.x) / 64 * 64; }
  __device__ static int warp_column() { return static_cast<int>(threadIdx.x) / 32 % 2 * 64; }

  /// Byte offset of 16-byte chunk `chunk` in a row of `chunks`; rows are shifted against each other to avoid bank
  /// conflicts.
  template <int chunks>
  __device__ static std::uint32_t place(int row, int chunk) {
    return static_cast<std::uint32_t>((row * chunks + (chunk ^ (row & 7))) * 16);
  }

  /// Loads 128 x depth elements into shared memory: rows along the sum if `deep`, across it otherwise; zeros outside.
  template <bool deep>
  __device__ static void load(std::uint32_t to, const TileSource& from, int sum) {
    constexpr int chunks = deep ? depth / 8 : m / 8;
#pragma unroll
    for (int i = 0; i < m * depth / 8 / threads; ++i) {
      const int index = i * threads + static_cast<int>(threadIdx.x), row = index / chunks, chunk = index % chunks;
      const int across = from.first + (deep ? row : chunk * 8), along = sum + (deep ? chunk * 8 : row);
      const bool inside = across < from.end && along < from.end_sum;
      const std::int64_t at =
          deep ? std::int64_t{across} * from.distance + along : std::int64_t{along} * from.distance + across;
      const bf16* const source = inside ? from.data + at : from.data;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + place<chunks>(row, chunk)), "l"(source),
                   "r"(inside ? 16 : 0));
    }
  }

  template <bool straight>
  __device__ static void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
    if constexpr (straight)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                   : "r"(address));
    else
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                   : "r"(address));
  }

  /// Adds the products of sixteen steps of the summed dimension, from `k` of the stage on.
  template <bool a_deep, bool b_deep>
  __device__ void step(std::uint32_t stage, int k) {
    const int lane = static_cast<int>(threadIdx.x) % 32, part = lane / 8, r = lane % 8;
    std::uint32_t a[4][4], b[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = warp_row() + 16 * i + part % 2 * 8, deep = k + part / 2 * 8;
      load_matrices<a_deep>(a[i],
                            stage + (a_deep ? place<depth / 8>(row + r, deep / 8) : place<m / 8>(deep + r, row / 8)));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = warp_column() + 16 * j + part / 2 * 8, deep = k + part % 2 * 8;
      load_matrices<b_deep>(b[j],
                            stage + m * depth * 2 +
                                (b_deep ? place<depth / 8>(column + r, deep / 8) : place<n / 8>(deep + r, column / 8)));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum_[i][j][0]), "+f"(sum_[i][j][1]), "+f"(sum_[i][j][2]), "+f"(sum_[i][j][3])
            : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[j / 2][j % 2 * 2]),
              "r"(b[j / 2][j % 2 * 2 + 1]));
  }

  float sum_[4][8][4] = {};
};

}  // namespace tessera::gemm
