#pragma once
#include <chrono>

#include "core/device/device.hpp"

namespace tessera {

/// A named stretch of host time: a Kokkos::Profiling region that tools see, and a line in Device::regions(). `name`
/// must be a literal. On a GPU it spans the enqueueing, not the work.
class Region {
 public:
  Region(Device& device, const char* name);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  Device& device_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace tessera
