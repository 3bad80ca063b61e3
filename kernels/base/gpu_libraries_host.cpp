#include "kernels/base/gpu_libraries.hpp"

namespace tessera {

std::vector<LibraryVersion> gpu_libraries() { return {}; }

}  // namespace tessera
