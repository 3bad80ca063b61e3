#include "io/metrics/run_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tessera {
namespace {

/// Writes and syncs; the errno of the first failure, 0 for none.
int write_synced(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return errno;
  int failure = 0;
  for (std::size_t done = 0; done < text.size() && !failure;) {
    const ssize_t n = ::write(file, text.data() + done, text.size() - done);
    if (n > 0)
      done += static_cast<std::size_t>(n);
    else if (n < 0 && errno != EINTR)
      failure = errno;
  }
  if (!failure && ::fsync(file) != 0) failure = errno;
  if (::close(file) != 0 && !failure) failure = errno;
  return failure;
}

}  // namespace

void write_text_file(const std::filesystem::path& path, const std::string& text, Problems& problems) {
  const std::string temporary = path.string() + ".tmp";
  int failure = write_synced(temporary, text);
  if (!failure && ::rename(temporary.c_str(), path.c_str()) != 0) failure = errno;
  if (!failure) return;
  ::unlink(temporary.c_str());
  problems.add(Exit::environment, fmt::format("{}: cannot be written: {}", path.string(), std::strerror(failure)));
}

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
  const int failure = write_synced(probe.string(), std::string(4096, '.'));
  fs::remove(probe, error);
  if (failure)
    problems.add(Exit::environment,
                 fmt::format("checkpoint.dir: nothing can be written in {}: {}; make room or name another directory",
                             directory.string(), std::strerror(failure)));
}

}  // namespace tessera
