#include "app/cli/build.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

Build built() {
  Build build{"0.1.0",  "GCC 12.2.0", "Release", "81fc002", "OpenMP", "Open MPI v4.1.4, package: Debian", "",
              "x86-64-v3", {}};
  build.libraries = {{"Kokkos", "4.7.0"}, {"HDF5", "1.10.8"}, {"fmt", "9.1.0"}, {"oneDNN", "2.6.0"}};
  return build;
}

TEST(Build, TellsWhatBitsMayDependOn) {
  const Build now = built();
  const std::string libraries = libraries_text(now);
  EXPECT_EQ(difference_text(now, "81fc002", libraries), "");
  struct Change {
    void (*make)(Build&);
    const char* told;
  };
  const Change changes[] = {
      {[](Build& b) { b.git_sha = "1c9c3e1"; }, "1c9c3e1 -> 81fc002"},
      {[](Build& b) { b.git_sha += "-dirty"; }, "81fc002-dirty -> 81fc002"},
      {[](Build& b) { b.compiler = "Clang 22.1.0"; }, "compiler Clang 22.1.0 Release -> GCC 12.2.0 Release"},
      {[](Build& b) { b.build_type = "Debug"; }, "compiler GCC 12.2.0 Debug -> GCC 12.2.0 Release"},
      {[](Build& b) { b.cpu = "x86-64-v4"; }, "CPU x86-64-v4 -> x86-64-v3"},
      {[](Build& b) { b.back_end = "Cuda"; }, "back_end Cuda -> OpenMP"},
      {[](Build& b) { b.libraries[0].version = "4.7.1"; }, "Kokkos 4.7.1 -> 4.7.0"},
      {[](Build& b) { b.libraries[3].version = "2.6.01"; }, "oneDNN 2.6.01 -> 2.6.0"},
      {[](Build& b) { b.libraries[1].version = "1.14.0"; }, ""},  // reads and writes files
      {[](Build& b) { b.libraries[2].version = "10"; }, ""},
      {[](Build& b) { b.mpi = "MPICH Version: 4.0.2"; }, ""}};
  for (const Change& one : changes) {
    Build other = now;
    one.make(other);
    EXPECT_EQ(difference_text(now, other.git_sha, libraries_text(other)), one.told);
    for (const Change& two : changes) {  // and any two at once
      Build both = other;
      two.make(both);
      const std::string told = difference_text(now, both.git_sha, libraries_text(both));
      if (both.compiler != now.compiler) {
        EXPECT_NE(told.find("compiler Clang"), std::string::npos) << told;
      }
      if (both.cpu != now.cpu) {
        EXPECT_NE(told.find("CPU x86-64-v4 -> x86-64-v3"), std::string::npos) << told;
      }
      if (both.git_sha != now.git_sha) {
        EXPECT_NE(told.find(" -> 81fc002"), std::string::npos) << told;
      }
    }
  }
  Build less = now;
  less.libraries.clear();
  EXPECT_EQ(difference_text(now, "81fc002", libraries_text(less)), "") << "what is not recorded";
  EXPECT_EQ(difference_text(now, "", ""), "") << "a checkpoint that records nothing";
  EXPECT_EQ(difference_text(now, "81fc002", "Kokkos 4.7.0, oneDNN 2.6.0, MPICH Version: 4.0.2"), "") << "an older one";
}

}  // namespace
}  // namespace tessera
