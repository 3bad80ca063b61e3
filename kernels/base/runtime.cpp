#include "kernels/base/runtime.hpp"

#include <Kokkos_Core.hpp>

namespace tessera {
namespace {
int planned_threads = 1;
}  // namespace

Runtime::Runtime(int threads, int device) {
  Kokkos::InitializationSettings settings;
  settings.set_disable_warnings(true);
  if (threads > 0) settings.set_num_threads(threads);
  if (device >= 0) settings.set_device_id(device);
  Kokkos::initialize(settings);
}
Runtime::~Runtime() { Kokkos::finalize(); }

std::string Runtime::back_end() { return Kokkos::DefaultExecutionSpace::name(); }
int Runtime::threads() {
  return Kokkos::is_initialized() ? Kokkos::DefaultHostExecutionSpace().concurrency() : planned_threads;
}
void Runtime::plan_for(int threads) { planned_threads = threads; }

}  // namespace tessera
