#pragma once
#include <string>
#include <vector>

namespace tessera {

struct Library {
  std::string name, version;
};

/// Versions of this program, its compiler and its libraries.
struct Build {
  std::string version, compiler, build_type;
  std::string git_sha;   ///< the commit, "-dirty" behind it where files differed; "unknown" outside a repository
  std::string back_end;  ///< of Kokkos: "OpenMP", "Serial" or "Cuda"
  std::string mpi;       ///< as the MPI library found at run time calls itself, on one line
  std::vector<Library> libraries;
};
/// Needs neither MPI nor Kokkos to be running.
Build this_build();
/// "Kokkos 4.7.0, oneDNN 2.6.0, ...", MPI last.
std::string libraries_text(const Build& build);

}  // namespace tessera
