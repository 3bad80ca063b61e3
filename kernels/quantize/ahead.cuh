#pragma once
#include "kernels/quantize/gelu.cuh"

/// Device code: what a gelu or its gradient is computed from, fetched into shared memory while the codes of the patch
/// before are computed. A thread fetches what it will itself read, 16 bytes of each of its rows, so that fetching needs
/// no barrier.
namespace tessera::quantizer::device {

/// The patches of one matrix that a block of threads takes in turn, from left to right and down.
class TaskWalk {
 public:
  struct At {
    int row, column;  ///< of the matrix's grid of patches
    __device__ Patch patch(const Descriptor& d) const {
      return area_at(d, 0, std::int64_t{row} * patch_edge, std::int64_t{column} * patch_edge, one_patch);
    }
  };
  __device__ explicit TaskWalk(const Units& units)
      : down_(units.down), across_(units.across), step_(at(static_cast<int>(gridDim.x))) {}
  __device__ At first() const { return at(static_cast<int>(blockIdx.x)); }
  __device__ bool holds(const At& at) const { return at.row < down_; }
  __device__ At after(const At& at) const {
    const int column = at.column + step_.column, beyond = column >= across_;
    return {at.row + step_.row + beyond, column - (beyond ? across_ : 0)};
  }

 private:
  __device__ At at(int unit) const { return {unit / across_, unit % across_}; }

  int down_, across_;
  At step_;
};

/// A ring of slots of four rows of a patch, for a block of threads. Slots are fetched and read in turn.
template <class Source>
requires OfGelu<Source>
class Ahead {
 public:
  static constexpr int rows = 4, sources = std::is_same_v<Source, FromGeluGradient> ? 2 : 1;
  /// Four slots are a whole patch: 32 KiB, of which four blocks of threads fit on a multiprocessor beside their codes.
  static constexpr int slots = 4 / sources, groups = height / rows;
  struct Memory {
    uint4 slot[slots][rows][sources][threads];
  };

  __device__ Ahead(Memory& memory, const Descriptor& d) : memory_(memory), d_(d) {}

  /// The patch whose rows are fetched from now on.
  __device__ void aim(const Patch& p) {
    const Seat seat;
    bytes_ = seat.column < p.columns ? sizeof(uint4) : 0;
    offset_ = bytes_ > 0 ? origin_of(d_, p) + seat.row * d_.matrix.columns + seat.column : 0;
  }
  /// No further patch: fetches nothing.
  __device__ void aim() { bytes_ = 0, offset_ = 0; }

  /// Begins to fetch rows [4 group, 4 group + 4) of the patch aimed at. Elements outside the matrix become 0.
  __device__ void fetch(int group) const {
    const std::int64_t width = d_.matrix.columns, first = offset_ + (bytes_ > 0 ? group * rows * width : 0);
    const std::int64_t step = bytes_ > 0 ? width : 0;
    const auto* values = reinterpret_cast<const std::uint16_t*>(d_.values) + first;
    const auto* pre = d_.pre + first;
#pragma unroll
    for (int r = 0; r < rows; ++r, values += step, pre += step) {
      auto& to = memory_.slot[group % slots][r];
      copy(to[0], values);
      if constexpr (sources == 2) copy(to[1], pre);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  /// Waits for the oldest slot.
  __device__ void await() const { asm volatile("cp.async.wait_group %0;" ::"n"(slots - 1) : "memory"); }

  __device__ void finish() const { asm volatile("cp.async.wait_all;" ::: "memory"); }

  /// Row r of the thread's part of a patch, from a slot that has arrived: a gelu, or its gradient.
  __device__ void read(int r, Pairs& x) const {
    put(x, r, 0, r);
    if constexpr (sources == 1) {
      to_gelus(x, r);
    } else {
      Pairs pre;
      put(pre, r, 1, r);
      to_gradients(x, pre, r);
    }
  }

 private:
  __device__ void put(Pairs& x, int r, int source, int row) const {
    const uint4 v = memory_.slot[row / rows % slots][row % rows][source][threadIdx.x];
    x.pair[r][0] = v.x, x.pair[r][1] = v.y, x.pair[r][2] = v.z, x.pair[r][3] = v.w;
  }
  __device__ void copy(uint4 (&to)[threads], const std::uint16_t* from) const {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(
                     static_cast<std::uint32_t>(__cvta_generic_to_shared(&to[threadIdx.x]))),
                 "l"(from), "r"(bytes_), "l"(leave_first())
                 : "memory");
  }

  Memory& memory_;
  const Descriptor& d_;
  std::int64_t offset_ = 0;
  int bytes_ = 0;
};

}  // namespace tessera::quantizer::device
