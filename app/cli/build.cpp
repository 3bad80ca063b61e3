#include "app/cli/build.hpp"

#include <CLI/Version.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/comm/mpi.hpp"
#include "git_sha.hpp"
#include "io/hdf5/file.hpp"
#include "io/text/splitting.hpp"
#include "kernels/base/gpu_libraries.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

std::string dotted(int major, int minor, int patch) { return fmt::format("{}.{}.{}", major, minor, patch); }

std::string compiler() {
#if defined(__clang__)
  return std::string("Clang ") + __clang_version__;
#else
  return std::string("GCC ") + __VERSION__;
#endif
}

}  // namespace

Build this_build() {
  // TESSERA_* macros come from CMake, for libraries whose headers lack a version or are included by kernels only.
  Build build{TESSERA_VERSION, compiler(), TESSERA_BUILD_TYPE, TESSERA_GIT_SHA, Runtime::back_end(),
              Mpi::version(), {}};
  build.libraries = {
      {"Kokkos", TESSERA_KOKKOS_VERSION},
      {"HDF5", hdf5::version()},
      {"yaml-cpp", TESSERA_YAML_VERSION},
      {"fmt", dotted(FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"CLI11", CLI11_VERSION},
      {"nlohmann_json", dotted(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
  };
  if (*TESSERA_DNNL_VERSION != '\0')  // oneDNN is in host builds only
    build.libraries.push_back({"oneDNN", TESSERA_DNNL_VERSION});
  if (const std::string icu = unicode_library(); !icu.empty()) build.libraries.push_back({"ICU", icu});
  for (const LibraryVersion& library : gpu_libraries()) build.libraries.push_back({library.name, library.version});
  if (const std::string nccl = Mpi::nccl_version(); !nccl.empty()) build.libraries.push_back({"NCCL", nccl});
  return build;
}

std::string libraries_text(const Build& build) {
  std::string text;
  for (const Library& library : build.libraries) text += library.name + " " + library.version + ", ";
  return text + build.mpi;
}

}  // namespace tessera
