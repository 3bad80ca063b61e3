#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/cli/build.hpp"
#include "app/cli/threads.hpp"
#include "app/verbs/verbs.hpp"

namespace tessera {

int run_info(const InfoOptions& options) {
  const Build build = this_build();
  if (options.format == Format::json) {
    nlohmann::ordered_json json = {{"version", build.version},
                                   {"git_sha", build.git_sha},
                                   {"compiler", build.compiler},
                                   {"build_type", build.build_type},
                                   {"back_end", build.back_end},
                                   {"threads", host_threads(1)},
                                   {"mpi", build.mpi}};
    for (const Library& library : build.libraries) json["libraries"][library.name] = library.version;
    fmt::print("{}\n", json.dump());
    return 0;
  }
  fmt::print("tessera    {}, {}\ncompiler   {}, {}\nback end   {}\nthreads    {}\nMPI        {}\nlibraries ",
             build.version, build.git_sha, build.compiler, build.build_type, build.back_end, host_threads(1),
             build.mpi);
  for (const Library& library : build.libraries) fmt::print(" {} {}", library.name, library.version);
  fmt::print("\n");
  return 0;
}

}  // namespace tessera
