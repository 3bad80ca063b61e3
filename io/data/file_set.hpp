#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Whether a path below a root, components separated by '/', fits a pattern: `?` is one byte and `*` any number of
/// them, both within a component; `**` as a component is any number of components, none included.
bool fits(std::string_view pattern, std::string_view path);

/// The files that a deck's `data` section names.
struct FileSet {
  std::filesystem::path root;
  std::vector<std::string> patterns;
  std::filesystem::path run_directory;  ///< left out with all it holds; may be empty
};

/// Paths of the regular files that fit any pattern, each once, sorted by the bytes of their path below the root.
/// Folders that begin with '.' or 'build' and the run directory are left out. Throws Error{file} when the root or a
/// folder cannot be read, when a pattern without wildcards names no file, and when there is no file at all.
std::vector<std::filesystem::path> list_files(const FileSet& set);

}  // namespace tessera
