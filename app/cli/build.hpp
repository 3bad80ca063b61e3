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
  std::string git_sha;   ///< the commit, with "-dirty" if files differed from it; "unknown" outside a repository
  std::string back_end;  ///< of Kokkos: "OpenMP", "Serial" or "Cuda"
  std::string mpi;       ///< name and version of the MPI library found at run time, on one line
  std::vector<Library> libraries;
};
/// The versions of this build. MPI and Kokkos need not be initialised. Local.
Build this_build();
/// Text of the libraries' versions: "Kokkos 4.7.0, oneDNN 2.6.0, ...", MPI last.
std::string libraries_text(const Build& build);

}  // namespace tessera
