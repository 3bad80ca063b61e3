#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// A GPU that this process may use.
struct Gpu {
  std::string name;
  std::string uuid;  ///< the same for every process that sees this one, of no other GPU
  std::string capability;  ///< of its processor, "9.0"
  std::int64_t memory = 0;  ///< bytes
};

/// Starts Kokkos and ends it. One a process, outliving every Device. `threads` 0: what the environment says; `device`
/// indexes gpus(); -1: Kokkos chooses.
class Runtime {
 public:
  explicit Runtime(int threads = 0, int device = -1);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  static std::string back_end();  ///< "OpenMP", "Serial" or "Cuda"
  /// Of a CUDA build, in the driver's order; empty in a host build and without a driver. Needs no Runtime.
  static std::vector<Gpu> gpus();
  static Gpu gpu();  ///< that of the living Runtime; empty in a host build
  static std::string gpu_driver();  ///< "580.95, CUDA 13.0", the newest that it runs; empty without one
  /// Host threads of one rank: of the living Runtime, else those given to plan_for().
  static int threads();
  /// Sets threads() for planning, which starts no Runtime.
  static void plan_for(int threads);
};

}  // namespace tessera
