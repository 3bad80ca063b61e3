#pragma once
#include <string>

namespace tessera {

/// Starts Kokkos and ends it. One a process, outliving every Device. `threads` 0: what the environment says;
/// `device` -1: none chosen (host builds).
class Runtime {
 public:
  explicit Runtime(int threads = 0, int device = -1);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  static std::string back_end();  ///< "OpenMP", "Serial" or "Cuda"
  /// Host threads of one rank: those of the Runtime that lives, else those that a plan is made for.
  static int threads();
  /// Planning needs no Runtime; it must only know the threads of the one to come.
  static void plan_for(int threads);
};

}  // namespace tessera
