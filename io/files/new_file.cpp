#include "io/files/new_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdio>

namespace tessera {

namespace fs = std::filesystem;

namespace {

Error busy(const fs::path& beginning, const fs::path& name) {
  return {Exit::environment,
          fmt::format("{}: another process is making it, as {}; wait for its end", name.string(), beginning.string())};
}

}  // namespace

void refuse_existing(const fs::path& name) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(name, error)))
    throw Error(Exit::file,
                name.string() + ": exists already, and is not replaced: give another name, or move it away");
}

bool clear_away(const fs::path& beginning, const fs::path& name) {
  std::error_code error;
  std::optional<PosixFile> held;
  PosixFile::Lock lock = PosixFile::Lock::unknown;
  try {
    // Some file systems lock only files that are open for writing; folders cannot be opened so.
    const auto mode = fs::is_directory(beginning, error) ? PosixFile::Mode::read : PosixFile::Mode::write;
    lock = held.emplace(beginning, mode).lock();
  } catch (const Error&) {
    // It may belong to another user; reported below.
  }
  if (lock == PosixFile::Lock::refused) throw busy(beginning, name);
  const bool removed = lock == PosixFile::Lock::taken && fs::remove_all(beginning, error) > 0 && !error;
  fmt::print(stderr, "{}: {}\n", beginning.string(),
             removed ? "removed; a process that did not reach its end had left it"
                     : "may have been left behind by a process that did not reach its end; remove it if so");
  return removed;
}

NewFile::NewFile(const fs::path& name) : name_(name), path_(name.string() + ".tmp") {
  refuse_existing(name_);
  std::error_code error;
  if (fs::exists(fs::symlink_status(path_, error))) free_ = clear_away(path_, name_);
}

NewFile::~NewFile() {
  if (path_.empty() || !free_) return;
  try {
    // Not held yet: the file there may be another process's.
    if (!file_ && file_.emplace(path_, PosixFile::Mode::write).lock() == PosixFile::Lock::refused) return;
    std::error_code ignored;
    fs::remove(path_, ignored);
  } catch (const Error&) {
    // The file was never created.
  }
}

PosixFile& NewFile::hold() {
  PosixFile file(path_, PosixFile::Mode::write);
  // Between creation and lock another process may have taken the file for a leftover, and removed it.
  if (file.lock() == PosixFile::Lock::refused || !file.named()) throw busy(path_, name_);
  file_.emplace(std::move(file));
  file_->reserve(file_->size());
  return *file_;
}

void NewFile::commit() {
  file_->sync();
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, name_.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno == EEXIST) refuse_existing(name_);
    std::error_code failure;  // the file system has no rename that refuses to replace: use a plain one
    fs::rename(path_, name_, failure);
    if (failure)
      throw Error(Exit::environment,
                  fmt::format("{}: cannot become {}: {}", path_.string(), name_.string(), failure.message()));
  }
  path_.clear();
  sync_folder(name_.has_parent_path() ? name_.parent_path() : ".");
}

}  // namespace tessera
