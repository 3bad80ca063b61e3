#pragma once
// What the sources with CUTLASS's kernels share. For sources compiled for sm_90a only.
#include <cuda_runtime.h>
#include <cutlass/kernel_hardware_info.h>
#include <cutlass/layout/matrix.h>
#include <cutlass/numeric_types.h>

#include <cstdint>
#include <cute/tensor.hpp>
#include <type_traits>

#include "kernels/base/error.hpp"
#include "kernels/base/index.hpp"

namespace tessera::gemm::hopper {

using Size = cute::Shape<int, int, int>;  // m, n, k of one expert's product

/// Room for the descriptors that a grouped kernel writes while it runs: one set a multiprocessor.
constexpr std::int64_t most_multiprocessors = 256, descriptors = 5, descriptor_bytes = 128;
constexpr std::int64_t descriptor_room = most_multiprocessors * descriptors * descriptor_bytes;

/// Arrays with one entry per expert, one behind the other in device memory.
class Arrays {
 public:
  Arrays(std::byte* memory, std::int64_t experts) : at_(memory), experts_(experts) {}
  template <class... T>
  void take(T*&... arrays) {
    (take_one(arrays), ...);
  }

  /// An upper bound of the bytes that arrays of these types need.
  template <class... T>
  static constexpr std::int64_t bytes(std::int64_t experts) {
    return (round_up(experts * static_cast<std::int64_t>(sizeof(T)), 16) + ...);
  }

 private:
  template <class T>
  void take_one(T*& array) {
    array = reinterpret_cast<T*>(at_);
    at_ += bytes<T>(experts_);
  }
  std::byte* at_;
  std::int64_t experts_;
};

/// The stride of one matrix in memory: `distance` from one row, or column, to the next.
template <class Stride>
__host__ __device__ Stride stepping(std::int64_t distance) {
  Stride s;
  if constexpr (std::is_same_v<std::remove_cvref_t<decltype(cute::get<0>(s))>, std::int64_t>)
    cute::get<0>(s) = distance;
  else
    cute::get<1>(s) = distance;
  return s;
}

constexpr int block = 128;  ///< codes that share a scale of FP8 blocks, along the sum

/// CUTLASS's layout of the scales of `rows` rows of `k` codes. Consecutive lines of scales begin `line` entries apart.
template <class Grid>
__host__ __device__ Grid scale_grid(int rows, int k, int line) {
  Grid grid;
  constexpr int shared = cute::size<0, 0>(Grid{});
  cute::get<0, 1>(grid.shape()) = (rows + shared - 1) / shared;
  cute::get<1, 1>(grid.shape()) = (k + block - 1) / block;
  cute::get<2>(grid.shape()) = 1;
  if constexpr (std::is_same_v<std::remove_cvref_t<decltype(cute::get<0, 1>(grid.stride()))>, cute::_1>)
    cute::get<1, 1>(grid.stride()) = line;
  else
    cute::get<0, 1>(grid.stride()) = line;
  cute::get<2>(grid.stride()) = 0;
  return grid;
}

inline void check(bool succeeded, const char* call) {
  if (!succeeded) refuse("product by CUTLASS", call);
}

inline cutlass::KernelHardwareInfo hardware() {
  cutlass::KernelHardwareInfo info;
  check(cudaGetDevice(&info.device_id) == cudaSuccess, "cudaGetDevice");
  check(cudaDeviceGetAttribute(&info.sm_count, cudaDevAttrMultiProcessorCount, info.device_id) == cudaSuccess,
        "cudaDeviceGetAttribute");
  return info;
}

/// Launches a kernel of CUTLASS's; `memory` holds its descriptors (descriptor_room bytes).
template <class Gemm>
void start(cudaStream_t stream, const typename Gemm::Arguments& arguments, std::byte* memory) {
  Gemm gemm;
  check(static_cast<std::int64_t>(Gemm::get_workspace_size(arguments)) <= (memory ? descriptor_room : 0), "workspace");
  check(gemm.can_implement(arguments) == cutlass::Status::kSuccess, "can_implement");
  check(gemm.initialize(arguments, memory, stream) == cutlass::Status::kSuccess, "initialize");
  check(gemm.run(stream) == cutlass::Status::kSuccess, "run");
}

/// Sets a gradient of `count` floats, a multiple of 4, to 0; the blocks of x share it.
__device__ inline void clear(float* gradient, std::int64_t count) {
  auto* const c = reinterpret_cast<float4*>(gradient);
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count / 4; i += step)
    c[i] = {0, 0, 0, 0};
}
constexpr int clearing_blocks = 32;

}  // namespace tessera::gemm::hopper
