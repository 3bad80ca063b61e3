#pragma once
#include <filesystem>
#include <optional>

#include "io/files/posix_file.hpp"

namespace tessera {

/// A folder that appears under its name whole or not at all: it is filled as NAME.tmp.NONCE beside it, which is
/// locked meanwhile. What a killed process left of the same name is found by its missing lock, removed, and told of.
class NewFolder {
 public:
  /// Throws Error{file} where the name is taken, Error{environment} where the folder cannot be made or another process
  /// is making it.
  explicit NewFolder(const std::filesystem::path& name);
  /// Removes what was not committed.
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }  ///< where to fill it
  /// The files in it have been synchronised; so are the folder, the renaming and the folder above.
  void commit();

 private:
  std::filesystem::path name_, path_;
  std::optional<PosixFile> lock_;
};

}  // namespace tessera
