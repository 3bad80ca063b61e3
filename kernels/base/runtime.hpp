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
  static Gpu gpu();  ///< the one that the Runtime that lives runs on; an empty one in a host build
  static std::string gpu_driver();  ///< "580.95, CUDA 13.0", the newest that it runs; empty without one
  /// Host threads of one rank: those of the Runtime that lives, else those that a plan is made for.
  static int threads();
  /// Planning needs no Runtime; it must only know the threads of the one to come.
  static void plan_for(int threads);
};

}  // namespace tessera
