#pragma once
// Only for CUDA sources. Bulk copies (cp.async.bulk) from global to shared memory by the copy engine of a
// multiprocessor (Hopper and later). They occupy neither threads nor registers while they are under way.
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::bulk {

/// Whether the current GPU has bulk copies (compute capability 9.0 or later) and gives a block `shared_bytes` of shared
/// memory.
inline bool fits(std::int64_t shared_bytes) {
  int device = 0, major = 0, most = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9 &&
         cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
         shared_bytes <= most;
}

/// Barrier in shared memory (mbarrier) at which threads of a block wait until the bytes of one copy have arrived. For
/// one copy only.
class Arrival {
 public:
  /// Called by one thread; a __syncthreads() follows before other threads wait().
  __device__ void init() {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&word_)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  /// Starts the copy of `bytes`; both addresses and `bytes` are multiples of 16. Called by the thread that called
  /// init().
  __device__ void fetch(void* to, const void* from, std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&word_)), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(to)),
        "l"(from), "r"(bytes), "r"(address(&word_))
        : "memory");
#endif
  }
  __device__ void wait() {
#if __CUDA_ARCH__ >= 900
    std::uint32_t done = 0;
    while (done == 0)
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
                   : "=r"(done)
                   : "r"(address(&word_))
                   : "memory");
#endif
  }

 private:
  __device__ static std::uint32_t address(const void* shared) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  }
  std::uint64_t word_;
};

}  // namespace tessera::bulk
