#pragma once
#include <filesystem>
#include <optional>

#include "io/files/posix_file.hpp"

namespace tessera {

/// Throws Error{file} if `name` exists, even as a dangling link.
void refuse_existing(const std::filesystem::path& name);

/// Removes `beginning`, an unfinished file or folder that a killed process left of `name`, and reports it on stderr. If
/// the file system cannot tell whether a process still works on it (no locks), leaves it, reports that, and returns
/// false. Throws Error{environment} if a process does.
bool clear_away(const std::filesystem::path& beginning, const std::filesystem::path& name);

/// Atomic creation of a file: it appears under its name whole or not at all. It is made as `<name>.tmp`, which is
/// locked meanwhile; a `<name>.tmp` without a lock was left by a killed process. Local.
class NewFile {
 public:
  /// Throws Error{file} if `name` exists, Error{environment} if another process is making it.
  explicit NewFile(const std::filesystem::path& name);
  /// Removes the file unless it was committed.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::filesystem::path& path() const { return path_; }  ///< where the caller must create the file
  /// Opens the file that the caller has created at path() with its final size, locks it and reserves its space. Throws
  /// Error{environment}, for a full disk before anything is written.
  PosixFile& hold();
  /// Synchronises the file, then renames it to its name. Throws Error{file} if that name exists by now; it is not
  /// replaced.
  void commit();

 private:
  std::filesystem::path name_, path_;
  bool free_ = true;  ///< whether path() was free at first; else it may be another process's file, and stays
  std::optional<PosixFile> file_;
};

}  // namespace tessera
