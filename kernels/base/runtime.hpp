#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// A GPU that this process may use.
struct Gpu {
  std::string name;
  std::string uuid;  ///< identifies the GPU in all processes that see it
  std::string capability;  ///< compute capability, "9.0"
  std::int64_t memory = 0;  ///< bytes
  int peers = 0;  ///< other GPUs that this process sees, to whose memory it can copy
};

/// Initialises Kokkos and finalises it. One a process; must outlive every Device. `threads` 0: as the environment says.
/// `device` is an index of gpus(); -1: Kokkos chooses. Throws Error{environment} if threads_refused().
class Runtime {
 public:
  explicit Runtime(int threads = 0, int device = -1);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  static std::string back_end();  ///< "OpenMP", "Serial" or "Cuda"
  /// The GPUs that this process may use, in the driver's order; empty in a host build and without a driver. Needs no
  /// Runtime.
  static std::vector<Gpu> gpus();
  static Gpu gpu();  ///< the GPU of the living Runtime; empty in a host build
  static std::string gpu_driver();  ///< driver and the newest CUDA that it runs: "580.95, CUDA 13.0"; empty without one
  static constexpr std::int64_t most_threads = 512;  ///< that Kokkos has room for
  /// Host threads of one rank: those of the living Runtime, else those given to plan_for().
  static int threads();
  /// Sets threads() for planning, which starts no Runtime.
  static void plan_for(int threads);

  /// Why a parallel region of this process cannot have so many threads, with the variable that forbids it; empty: it
  /// can. Sets what a program may set, so that regions keep their size: no adjustment to the load of the machine
  /// (OMP_DYNAMIC), one active level (OMP_MAX_ACTIVE_LEVELS). Opens a region, to see. Local.
  static std::string threads_refused(int threads);
  /// Throws Error{environment} unless a region that opens now has threads() threads. Libraries deal work by the number
  /// for which a product was planned; the part of a thread that is missing would not be done. Reads settings alone.
  static void require_threads();
};

}  // namespace tessera
