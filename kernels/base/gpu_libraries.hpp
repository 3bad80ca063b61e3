#pragma once
#include <string>
#include <vector>

namespace tessera {

struct LibraryVersion {
  std::string name, version;
};

/// The CUDA runtime and NVIDIA's libraries that kernels call, as found at run time; none in a host build.
std::vector<LibraryVersion> gpu_libraries();

}  // namespace tessera
