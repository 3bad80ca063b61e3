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

/// Launches a kernel of CUTLASS's; `memory` is room for what it writes while it runs.
template <class Gemm>
void start(cudaStream_t stream, const typename Gemm::Arguments& arguments, std::byte* memory, std::int64_t room) {
  Gemm gemm;
  check(static_cast<std::int64_t>(Gemm::get_workspace_size(arguments)) <= room, "workspace");
  check(gemm.can_implement(arguments) == cutlass::Status::kSuccess, "can_implement");
  check(gemm.initialize(arguments, memory, stream) == cutlass::Status::kSuccess, "initialize");
  check(gemm.run(stream) == cutlass::Status::kSuccess, "run");
}

}  // namespace tessera::gemm::hopper
