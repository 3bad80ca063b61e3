#pragma once
#include <string>
#include <vector>

namespace tessera {

struct Library {
  std::string name, version;
};

/// What this program was made of and with.
struct Build {
  std::string version, compiler, build_type;
  std::string back_end;  ///< of Kokkos: "OpenMP", "Serial" or "Cuda"
  std::string mpi;       ///< as the MPI library found at run time calls itself, on one line
  std::vector<Library> libraries;
};
/// Needs neither MPI nor Kokkos to be running.
Build this_build();

}  // namespace tessera
