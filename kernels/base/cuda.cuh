#pragma once
// For sources of the CUDA build.
#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/base/error.hpp"

namespace tessera {

/// Throws Error{internal} with CUDA's text if a call has failed; `call` names it.
inline void check_cuda(cudaError_t code, const char* call) {
  if (code != cudaSuccess) refuse(call, cudaGetErrorString(code));
}

#ifdef __CUDACC__

/// Blocks of a launch, threads of each, and its bytes of dynamic shared memory.
struct LaunchSize {
  dim3 blocks, threads;
  std::size_t shared = 0;
};

/// Launches a kernel. Throws Error{internal} with `name` if the GPU does not take it, which CUDA would report to
/// whoever asks next.
template <class... Parameters, class... Arguments>
void start_kernel(cudaStream_t stream, const char* name, void (*kernel)(Parameters...), const LaunchSize& size,
                  const Arguments&... arguments) {
  if (size.shared > 0)  // with its static part it may have more than every kernel may
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(size.shared)),
               name);
  kernel<<<size.blocks, size.threads, size.shared, stream>>>(arguments...);
  check_cuda(cudaGetLastError(), name);
}

#endif

}  // namespace tessera
