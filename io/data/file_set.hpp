#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config.hpp"

namespace tessera {

/// Whether a path below a root, components separated by '/', fits a pattern: `?` is one byte and `*` any number of
/// them, both within a component; `**` as a component is any number of components, none included.
bool fits(std::string_view pattern, std::string_view path);

/// The files that a deck's `data` section names.
struct FileSet {
  std::filesystem::path root;
  std::vector<std::string> patterns;    ///< below the root, or absolute
  std::filesystem::path run_directory;  ///< left out with all it holds; may be empty
  const char* key = "data.files";       ///< of the deck, which names them
};

/// Paths of the regular files that fit any pattern, each once, sorted by the bytes of their path below the root, or of
/// the whole path where they do not lie there. Folders that begin with '.' or 'build' and the run directory are left
/// out, but a file that an absolute path without wildcards names is taken wherever it lies. A root or folder that
/// cannot be read and each pattern that no file fits become a finding of data.root or data.files. Local.
std::vector<std::filesystem::path> list_files(const FileSet& set, std::vector<Finding>& findings);

}  // namespace tessera
