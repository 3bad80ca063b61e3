#pragma once
// What blocks of the gradients for heads of 128 columns share in global memory. They are sums of the queries' rows, and
// fp32 sums of dQ, to which blocks add in turn. For sources compiled for sm_90a only.
#include <cuda.h>

#include <cstdint>
#include <cuda/atomic>
#include <cute/arch/copy_sm90_tma.hpp>

#include "kernels/attention/attention.hpp"

namespace tessera::attention::wide {

/// For every strip of 64 queries of a head: its rows' sums, the part of dQ, and how many blocks have added to it.
struct QueryRows {
  static constexpr int strip_rows = 64, strip_values = strip_rows * 128;
  static constexpr std::uint32_t bytes = 2 * strip_rows * sizeof(float);

  float* sums;  ///< [strips][2][64]: lse in base 2, and the dot product of dout with out
  float* dq;    ///< [strips][2 panels][8][128 threads][4]: as warpgroups have it in registers, without the scale
  int* added;   ///< [strips], then how many items blocks have taken

  int total;  ///< strips of all heads

  template <class Call, class Item>
  __device__ int strip(const Call& call, const Item& item, int within) const {
    return (item.sequence * call.heads + item.head) * call.strips + within;
  }
  __device__ float* sums_of(int strip) const { return sums + std::int64_t{strip} * 2 * strip_rows; }
  __device__ int take_ticket() const {
    return cuda::atomic_ref<int, cuda::thread_scope_device>(added[total]).fetch_add(1, cuda::memory_order_relaxed);
  }

  /// One thread: adds a part of dQ in shared memory once `turn` others have been added; the first one is written. Calls
  /// read() once the part has been read.
  template <class F>
  __device__ void add(int strip, int turn, const void* part, const F& read) const {
    constexpr std::uint32_t size = strip_values * sizeof(float);
    cuda::atomic_ref<int, cuda::thread_scope_device> done(added[strip]);
    while (done.load(cuda::memory_order_acquire) != turn) continue;
    asm volatile("fence.proxy.async.global;" ::: "memory");
    float* const to = dq + std::int64_t{strip} * strip_values;
    if (turn == 0)
      cute::SM90_BULK_COPY_S2G::copy(part, to, size);
    else
      asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                   "r"(cute::cast_smem_ptr_to_uint(part)), "r"(size)
                   : "memory");
    cute::tma_store_arrive();
    cute::tma_store_wait<0>();
    read();
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async.global;" ::: "memory");
    done.store(turn + 1, cuda::memory_order_release);
  }
};

/// Temporaries of a call.
struct Workspace {
  Workspace(Arena& arena, const AttentionShape& shape);
  QueryRows rows() const;
  Tensor sums, dq, added;
  Tensor dkv;  ///< [tokens, 2 H D]: gradients of keys, then of values, of every query head, if heads share keys
};

/// Sums of rows; nothing added yet.
void prepare(Stream& stream, const AttentionShape& shape, const QueryRows& rows, const Tensor& dout, const Tensor& out,
             const Tensor& lse);
/// The gradients of queries, and of keys and values that heads share, in bf16.
void conclude(Stream& stream, const AttentionShape& shape, const QueryRows& rows, const Tensor& dkv,
              const Tensor& dqkv);

}  // namespace tessera::attention::wide
