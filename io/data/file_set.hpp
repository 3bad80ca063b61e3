#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Whether a path below a root, with components separated by '/', matches a pattern: `?` is one byte and `*` any number
/// of bytes, both within a component. `**` as a component is any number of components, or none.
bool fits(std::string_view pattern, std::string_view path);

/// The files that a deck's `data` section names.
struct FileSet {
  std::filesystem::path root;
  std::vector<std::string> patterns;    ///< below the root, or absolute
  std::filesystem::path run_directory;  ///< left out with all that it contains; may be empty
  const char* key = "data.files";       ///< the deck's key that names the files, for messages
};

/// Paths of the regular files that match any pattern, each once, sorted by the bytes of their path below the root. Or
/// of the absolute path if they are not below it. Folders whose names begin with '.' or 'build' and the run directory
/// are left out. But a file given by an absolute path without wildcards is always taken. A root or folder that cannot
/// be read, and each pattern that no file matches, becomes a finding of data.root or of set.key. Local.
std::vector<std::filesystem::path> list_files(const FileSet& set, std::vector<Finding>& findings);

}  // namespace tessera
