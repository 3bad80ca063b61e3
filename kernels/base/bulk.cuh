#pragma once
// For CUDA sources alone: bulk copies from global to shared memory by the copy engine of a multiprocessor (Hopper and
// later), which occupy neither threads nor registers while they travel.
#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::bulk {

/// Whether the GPU at hand has them, and lends a block `shared_bytes` of shared memory.
inline bool fits(std::int64_t shared_bytes) {
  int device = 0, major = 0, most = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9 &&
         cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
         shared_bytes <= most;
}

/// What threads of a block wait at until bytes that are copied have arrived: of one phase after the other.
class Arrival {
 public:
  /// By one thread, before a barrier of the block.
  __device__ void init() {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&word_)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  /// So many bytes make the phase that begins here. By one thread, behind that barrier, before it copies them.
  __device__ void expect(std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&word_)), "r"(bytes)
                 : "memory");
#endif
  }
  /// Starts a copy of `bytes`, a multiple of 16, between places at multiples of 16; what was read there before must
  /// have been read behind a barrier.
  __device__ void copy(void* to, const void* from, std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(to)),
        "l"(from), "r"(bytes), "r"(address(&word_))
        : "memory");
#endif
  }
  /// Until the phase has ended; phases count from 0.
  __device__ void wait(int phase) {
#if __CUDA_ARCH__ >= 900
    std::uint32_t done = 0;
    while (done == 0)
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                   : "=r"(done)
                   : "r"(address(&word_)), "r"(phase & 1)
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
