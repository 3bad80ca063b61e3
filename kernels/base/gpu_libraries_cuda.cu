#include <cublasLt.h>
#include <cuda_runtime_api.h>

#ifdef TESSERA_HOPPER
#include <cutlass/version.h>
#endif

#include "kernels/base/gpu_libraries.hpp"

// A weak symbol, since a build may do without cuDNN.
extern "C" __attribute__((weak)) std::size_t cudnnGetVersion();

namespace tessera {
namespace {

std::string dotted(std::size_t version, std::size_t minors, std::size_t patches) {
  return std::to_string(version / (minors * patches)) + "." + std::to_string(version / patches % minors) + "." +
         std::to_string(version % patches);
}

}  // namespace

std::vector<LibraryVersion> gpu_libraries() {
  std::vector<LibraryVersion> found;
  int runtime = 0;
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess)
    found.push_back({"CUDA", std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10)});
  found.push_back({"cuBLASLt", dotted(cublasLtGetVersion(), 100, 100)});
  if (cudnnGetVersion) found.push_back({"cuDNN", dotted(cudnnGetVersion(), 100, 100)});
#ifdef TESSERA_HOPPER
  found.push_back({"CUTLASS", dotted(100 * CUTLASS_MAJOR + 10 * CUTLASS_MINOR + CUTLASS_PATCH, 10, 10)});
#endif
  return found;
}

}  // namespace tessera
