#include "app/cli/build.hpp"

#include <algorithm>
#include <string_view>

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

std::string cpu() {
#if defined(__AVX512BF16__)
  return "x86-64-v4+bf16";
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
  return "x86-64-v4";
#elif defined(__AVX2__) && defined(__FMA__) && defined(__BMI2__)
  return "x86-64-v3";
#elif defined(__x86_64__)
  return "x86-64-v2";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "other";
#endif
}

/// The libraries that only read and write files, options and text.
constexpr std::string_view without_arithmetic[] = {"HDF5", "yaml-cpp", "fmt", "CLI11", "nlohmann_json", "ICU"};

/// What libraries_text() lists before MPI.
std::vector<Library> parts_of(const Build& build) {
  std::vector<Library> parts{{"compiler", build.compiler + " " + build.build_type}, {"CPU", build.cpu},
                             {"back_end", build.back_end}};
  parts.insert(parts.end(), build.libraries.begin(), build.libraries.end());
  return parts;
}

}  // namespace

Build this_build() {
  // TESSERA_* macros come from CMake, for libraries whose headers lack a version or are included by kernels only.
  Build build{TESSERA_VERSION, compiler(), TESSERA_BUILD_TYPE, TESSERA_GIT_SHA, Runtime::back_end(),
              Mpi::version(), Mpi::launcher(), cpu(), {}};
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
  for (const Library& part : parts_of(build)) text += part.name + " " + part.version + ", ";
  return text + build.mpi;
}

std::vector<Library> parts_of_bits(const Build& build) {
  std::vector<Library> parts = parts_of(build);
  std::erase_if(parts, [](const Library& part) {
    return std::ranges::find(without_arithmetic, part.name) != std::end(without_arithmetic);
  });
  return parts;
}

std::string difference_text(const Build& now, const std::string& git_sha, const std::string& libraries) {
  std::string text;
  const auto differs = [&](const std::string& name, const std::string& before, const std::string& version) {
    if (!before.empty() && before != version)
      text += fmt::format("{}{}{} -> {}", text.empty() ? "" : "; ", name, before, version);
  };
  differs("", git_sha, now.git_sha);
  const std::string recorded = ", " + libraries + ", ";
  for (const Library& part : parts_of_bits(now)) {
    const std::string begin = ", " + part.name + " ";
    const auto found = recorded.find(begin);
    if (found == std::string::npos) continue;
    const auto first = found + begin.size();
    differs(part.name + " ", recorded.substr(first, recorded.find(", ", first) - first), part.version);
  }
  return text;
}

}  // namespace tessera
