#pragma once
#include <filesystem>
#include <optional>

#include "io/files/posix_file.hpp"

namespace tessera {

/// Throws Error{file} where something of that name is there, a link that leads nowhere included.
void refuse_existing(const std::filesystem::path& name);

/// Removes what a killed process left of a file or folder that was to become `name`, and says so on stderr; where it
/// cannot know whether anybody still works on it, it leaves it and says that. Throws Error{environment} where somebody
/// does.
void clear_away(const std::filesystem::path& beginning, const std::filesystem::path& name);

/// A file that appears under its name whole or not at all: it is made as `<name>.tmp`, which is locked meanwhile. What
/// a killed process left of the same name is found by its missing lock.
class NewFile {
 public:
  /// Throws Error{file} where the name is taken, Error{environment} where another process is making it.
  explicit NewFile(const std::filesystem::path& name);
  /// Removes what was not committed.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::filesystem::path& path() const { return path_; }  ///< where to make it, as a file that was not there
  /// Opens what has been made there, which has its size by now, locks it and reserves its space. Throws
  /// Error{environment}: of a full disk before anything is written.
  PosixFile& hold();
  /// The file reaches the disk, then its name. Whatever has taken the name meanwhile stays: Error{file}.
  void commit();

 private:
  std::filesystem::path name_, path_;
  std::optional<PosixFile> file_;
};

}  // namespace tessera
