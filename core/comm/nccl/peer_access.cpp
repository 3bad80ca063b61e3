#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

#include "core/comm/nccl/copy_engines.cuh"
#include "core/comm/nccl/nccl_communicator.hpp"

namespace tessera {
namespace {

/// Memory of this rank's GPU whose CUDA IPC handle the other ranks try to open; no handle where it has none.
class Sample {
 public:
  explicit Sample(int gpu) {
    constexpr std::size_t bytes = 256;
    cudaIpcMemHandle_t handle{};
    if (cudaSetDevice(gpu) == cudaSuccess && cudaMalloc(&memory_, bytes) == cudaSuccess &&
        cudaIpcGetMemHandle(&handle, memory_) == cudaSuccess)
      exported_.assign(handle.reserved, sizeof handle.reserved);
    cudaGetLastError();  // clears the error
  }
  ~Sample() { cudaFree(memory_); }
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  const std::string& exported() const { return exported_; }

 private:
  void* memory_ = nullptr;
  std::string exported_;
};

/// Whether this process can open another one's sample.
bool opens(const std::string& exported) {
  cudaIpcMemHandle_t handle{};
  if (exported.size() != sizeof handle.reserved) return false;
  std::memcpy(handle.reserved, exported.data(), exported.size());
  void* memory = nullptr;
  const bool opened = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
  if (opened) cudaIpcCloseMemHandle(memory);
  cudaGetLastError();  // clears the error
  return opened;
}

}  // namespace

bool gpus_reach_each_other(Control& control, int gpu, int group) {
  const Sample mine(gpu);
  const std::vector<std::string> all = control.gather(mine.exported());
  const int first = control.rank() / group * group;
  bool reached = CopyEngines::supported() && !mine.exported().empty();
  for (int r = first; r < std::min(first + group, control.size()); ++r)
    if (r != control.rank()) reached = reached && opens(all[static_cast<std::size_t>(r)]);
  return control.max(reached ? 0 : 1) == 0;  // a sample lives until all have tried it
}

}  // namespace tessera
