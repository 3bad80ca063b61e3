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
  std::string git_sha;   ///< the commit, with "-dirty-" and a mark if files differed; "unknown" outside a repository
  std::string back_end;  ///< of Kokkos: "OpenMP", "Serial" or "Cuda"
  std::string mpi;       ///< name and version of the MPI library found at run time, on one line
  std::string launcher;  ///< of MPI: Mpi::launcher()
  std::string cpu;       ///< the level of CPUs that the compiler was allowed to use: "x86-64-v4"
  std::vector<Library> libraries;
};
/// The versions of this build. MPI and Kokkos need not be initialised. Local.
Build this_build();
/// Text of what a program is made of, for checkpoints: "compiler GCC 12.2.0 Release, CPU x86-64-v4, back_end OpenMP,
/// Kokkos 4.7.0, oneDNN 2.6.0, ...", MPI last.
std::string libraries_text(const Build& build);

/// Compiler, level of CPUs, back end and libraries, without those that only read and write files, options and text.
std::vector<Library> parts_of_bits(const Build& build);

/// In what a program differs from another that had this commit and libraries_text(), as far as bits may depend on it:
/// "81fc002 -> 1c9c3e1; oneDNN 2.6.0 -> 3.1.0". Empty if in nothing; what the other did not record does not count.
std::string difference_text(const Build& now, const std::string& git_sha, const std::string& libraries);

}  // namespace tessera
