#include "io/metrics/run_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "io/files/access.hpp"
#include "io/files/nonce.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/text_file.hpp"
#include "io/metrics/metrics_log.hpp"
#include "io/metrics/run_record.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

/// The errno of the reason why this user cannot create files in a folder; 0 if none is known beforehand.
int obstacle_to_files(const std::filesystem::path& folder) {
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) return errno;
  struct ::statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return errno;
  const auto room = ::geteuid() == 0 ? disk.f_bfree : disk.f_bavail;
  return disk.f_blocks > 0 && room == 0 ? ENOSPC : 0;
}

std::string cannot_be_made(const std::filesystem::path& directory, const std::string& why) {
  return fmt::format("checkpoint.dir: {} cannot be made: {}; name a directory in a writable place", directory.string(),
                     why);
}
std::string nothing_written(const std::filesystem::path& directory, int failure) {
  return fmt::format("checkpoint.dir: nothing can be written in {}: {}; make room or name another directory",
                     directory.string(), std::strerror(failure));
}

/// Files of other kinds of folders that a run would replace or mix with its own: reports, a checkpoint's manifest, a
/// Hugging Face folder's config.
constexpr std::array foreign_files{"report.html", "plan.txt", "manifest.json", "config.json"};
/// Files of which a run directory has at least one, also after a start that failed early.
constexpr std::array run_files{"LOCK", record_file, metrics_file, "deck.resolved.yaml"};

/// Adds a problem for a folder that is something else than a run directory.
void refuse_foreign(const std::filesystem::path& directory, Problems& problems) {
  const auto has = [&](const char* name) { return entry_at(directory / name) != Entry::none; };
  const auto found = std::ranges::find_if(foreign_files, has);
  if (found == foreign_files.end() || std::ranges::any_of(run_files, has)) return;
  problems.add(Exit::file, fmt::format("checkpoint.dir: {} holds {} and is no run directory, so a run would mix with "
                                       "or replace what is there; name another directory",
                                       directory.string(), *found));
}

}  // namespace

void check_run_directory(const std::filesystem::path& directory, Problems& problems) {
  namespace fs = std::filesystem;
  const fs::path whole = fs::absolute(directory);
  // Looks for the nearest ancestor that exists: if it is a file, create_directories would fail without naming it.
  for (fs::path part = whole;; part = part.parent_path()) {
    std::error_code error;
    const fs::file_status status = fs::status(part, error);
    if (status.type() == fs::file_type::not_found && part.has_relative_path()) continue;
    if (fs::exists(status) && !fs::is_directory(status)) {
      problems.add(Exit::environment,
                   fmt::format("checkpoint.dir: {} is a file, and the run directory {} needs a directory there; "
                               "remove it or name another directory",
                               part.string(), directory.string()));
    } else if (const int failure = fs::is_directory(status) ? obstacle_to_files(part) : error.value()) {
      const bool there = fs::is_directory(status) && part == whole;
      problems.add(Exit::environment,
                   there ? nothing_written(directory, failure) : cannot_be_made(directory, std::strerror(failure)));
    } else if (part == whole) {
      attempt(problems, [&] { refuse_foreign(directory, problems); });
    }
    return;
  }
}

void prepare_run_directory(const std::filesystem::path& directory, WrittenBy by, Problems& problems) {
  namespace fs = std::filesystem;
  Problems found;
  check_run_directory(directory, found);
  problems.add(found);
  if (!found.empty()) return;
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return problems.add(Exit::environment, cannot_be_made(directory, error.message()));
  // A name of its own, since another run may begin in the directory; remove_leftovers() knows its kind.
  const fs::path probe = directory / (".trash.probe." + nonce());
  const int failure = write_synced(probe, std::string(4096, '.'));
  int unlocked = 0;
  if (!failure && by == WrittenBy::mpi_io)
    attempt(problems, [&] { unlocked = PosixFile(probe, PosixFile::Mode::write).refuses_locks_of_parts(); });
  fs::remove(probe, error);
  if (failure) problems.add(Exit::environment, nothing_written(directory, failure));
  if (unlocked)
    problems.add(Exit::environment,
                 fmt::format("checkpoint.io: mpio needs locks of files, and the file system of {} keeps none: {}; "
                             "mount it with locks (NFS: with lockd; Lustre: -o flock), or use checkpoint.io: direct",
                             directory.string(), std::strerror(unlocked)));
}

}  // namespace tessera
