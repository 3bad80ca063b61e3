#pragma once
#include <filesystem>
#include <optional>

#include "io/files/posix_file.hpp"

namespace tessera {

/// Atomic creation of a folder: it appears under its name whole or not at all. It is filled as NAME.tmp.NONCE, which is
/// locked meanwhile; such a folder without a lock was left by a killed process and is removed with a message. Local.
class NewFolder {
 public:
  /// Throws Error{file} if `name` exists, Error{environment} if the folder cannot be made or another process is making
  /// it.
  explicit NewFolder(const std::filesystem::path& name);
  /// Removes the folder unless it was committed.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }  ///< where the caller fills it
  /// Renames the folder to its name, and synchronises the folder, the rename and the parent folder. The caller must
  /// have synchronised the files in it.
  void commit();

 private:
  std::filesystem::path name_, path_;
  std::optional<PosixFile> lock_;
};

}  // namespace tessera
