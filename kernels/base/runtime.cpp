#include "kernels/base/runtime.hpp"

#include <Kokkos_Core.hpp>
#include <fstream>

#include "kernels/base/error.hpp"

#if defined(KOKKOS_ENABLE_OPENMP)
#include <omp.h>
#endif

namespace tessera {
namespace {

int planned_threads = 1;

#if defined(KOKKOS_ENABLE_CUDA)

std::string dotted(int major, int minor) { return std::to_string(major) + "." + std::to_string(minor); }

int count_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Gpu described(int index) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) return {};
  constexpr char digits[] = "0123456789abcdef";
  std::string uuid;
  for (const char byte : properties.uuid.bytes) {
    uuid += digits[static_cast<unsigned char>(byte) >> 4];
    uuid += digits[byte & 15];
  }
  int peers = 0;
  for (int other = 0, n = count_gpus(); other < n; ++other) {
    int reached = 0;
    if (other != index && cudaDeviceCanAccessPeer(&reached, index, other) == cudaSuccess) peers += reached;
  }
  return {properties.name, uuid, dotted(properties.major, properties.minor),
          static_cast<std::int64_t>(properties.totalGlobalMem), peers};
}

std::string driver() {
  int cuda = 0;
  if (cudaDriverGetVersion(&cuda) != cudaSuccess || cuda == 0) return "";
  std::string module;
  std::getline(std::ifstream("/sys/module/nvidia/version"), module);
  return (module.empty() ? "" : module + ", ") + "CUDA " + dotted(cuda / 1000, cuda % 1000 / 10);
}

#else

Gpu described(int) { return {}; }
int count_gpus() { return 0; }
std::string driver() { return ""; }

#endif

#if defined(KOKKOS_ENABLE_OPENMP)

int default_threads() { return omp_get_max_threads(); }

/// Threads that a region has which asks for `threads`.
int team_of(int threads) {
  int team = 0;
#pragma omp parallel num_threads(threads)
#pragma omp single
  team = omp_get_num_threads();
  return team;
}

void hold_teams() {
  omp_set_dynamic(0);
  if (omp_get_max_active_levels() < 1) omp_set_max_active_levels(1);
}

bool teams_hold(int threads) {
  return omp_in_parallel() || (!omp_get_dynamic() && omp_get_max_threads() == threads &&
                               omp_get_thread_limit() >= threads && omp_get_max_active_levels() >= 1);
}

std::string limit_text(int threads) {
  if (omp_get_thread_limit() < threads)
    return "OMP_THREAD_LIMIT is " + std::to_string(omp_get_thread_limit()) + ": raise or unset it";
  return "the OpenMP library allows no more: look for OMP_ and KMP_ variables, and at the limit of processes "
         "(ulimit -u)";
}

#else

int default_threads() { return 1; }
int team_of(int threads) { return threads; }
void hold_teams() {}
bool teams_hold(int) { return true; }
std::string limit_text(int) { return ""; }

#endif

}  // namespace

Runtime::Runtime(int threads, int device) {
  const std::string refused = threads_refused(threads > 0 ? threads : default_threads());
  if (!refused.empty()) throw Error(Exit::environment, refused);
  Kokkos::InitializationSettings settings;
  settings.set_disable_warnings(true);
  if (threads > 0) settings.set_num_threads(threads);
  if (device >= 0) settings.set_device_id(device);
  Kokkos::initialize(settings);
}
Runtime::~Runtime() { Kokkos::finalize(); }

std::string Runtime::back_end() { return Kokkos::DefaultExecutionSpace::name(); }
std::vector<Gpu> Runtime::gpus() {
  std::vector<Gpu> all;
  for (int i = 0, n = count_gpus(); i < n; ++i) all.push_back(described(i));
  return all;
}
Gpu Runtime::gpu() { return count_gpus() > 0 ? described(Kokkos::device_id()) : Gpu{}; }
std::string Runtime::gpu_driver() { return driver(); }
int Runtime::threads() {
  return Kokkos::is_initialized() ? Kokkos::DefaultHostExecutionSpace().concurrency() : planned_threads;
}
std::string Runtime::threads_refused(int threads) {
  hold_teams();
  const int team = team_of(threads);
  if (team == threads) return "";
  return "host threads: " + std::to_string(threads) + " are asked for (run.threads, OMP_NUM_THREADS), and " +
         std::to_string(team) + " start; " + limit_text(threads) + ", or ask for fewer";
}
void Runtime::require_threads() {
  if (!teams_hold(threads()))
    throw Error(Exit::environment, "host threads: settings of OpenMP were changed in the run: regions no longer have " +
                                       std::to_string(threads()) + " threads");
}
void Runtime::plan_for(int threads) {
  planned_threads = threads;
#if defined(KOKKOS_ENABLE_OPENMP)
  omp_set_num_threads(threads);  // libraries size their scratch memory by it
#endif
}

}  // namespace tessera
