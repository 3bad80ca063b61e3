#include "io/metrics/run_directory.hpp"

#include <fmt/format.h>

#include <cstring>

#include "io/files/text_file.hpp"

namespace tessera {
void prepare_run_directory(const std::filesystem::path& directory, Problems& problems) {
  namespace fs = std::filesystem;
  std::error_code error;
  // The nearest ancestor that exists decides: a file there would make create_directories fail without saying where.
  for (fs::path part = fs::absolute(directory); part.has_relative_path(); part = part.parent_path()) {
    const fs::file_status status = fs::status(part, error);
    if (!fs::exists(status)) continue;
    if (fs::is_directory(status)) break;
    problems.add(Exit::environment,
                 fmt::format("checkpoint.dir: {} is a file, and the run directory {} needs a directory there; "
                             "remove it or name another directory",
                             part.string(), directory.string()));
    return;
  }
  fs::create_directories(directory, error);
  if (error) {
    problems.add(Exit::environment,
                 fmt::format("checkpoint.dir: {} cannot be made: {}; name a directory in a writable place",
                             directory.string(), error.message()));
    return;
  }
  const fs::path probe = directory / ".probe";
  const int failure = write_synced(probe, std::string(4096, '.'));
  fs::remove(probe, error);
  if (failure)
    problems.add(Exit::environment,
                 fmt::format("checkpoint.dir: nothing can be written in {}: {}; make room or name another directory",
                             directory.string(), std::strerror(failure)));
}

}  // namespace tessera
