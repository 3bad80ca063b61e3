#include "core/device/region.hpp"

#include <Kokkos_Core.hpp>

namespace tessera {

Region::Region(Device& device, const char* name) : device_(device), begin_(std::chrono::steady_clock::now()) {
  if (device.measuring()) return;
  Kokkos::Profiling::pushRegion(name);
  device.enter(name);
}

Region::~Region() {
  if (device_.measuring()) return;
  Kokkos::Profiling::popRegion();
  device_.leave(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count());
}

}  // namespace tessera
