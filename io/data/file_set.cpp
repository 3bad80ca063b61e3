#include "io/data/file_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "kernels/base/error.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

// One component against `?` and `*`: on a mismatch the last star takes one byte more.
bool component_fits(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

std::vector<std::string_view> components(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const std::size_t slash = path.find('/');
    if (const auto part = path.substr(0, slash); !part.empty() && part != ".") parts.push_back(part);
    path.remove_prefix(slash == std::string_view::npos ? path.size() : slash + 1);
  }
  return parts;
}

// element i: the whole path fits the first i components of the pattern.
std::vector<bool> progress(std::string_view pattern, std::string_view path) {
  const auto wanted = components(pattern);
  std::vector<bool> reached(wanted.size() + 1, false);
  const auto skip_stars = [&] {
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (reached[i] && wanted[i] == "**") reached[i + 1] = true;
  };
  reached[0] = true;
  skip_stars();
  for (const std::string_view name : components(path)) {
    std::vector<bool> next(reached.size(), false);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!reached[i]) continue;
      if (wanted[i] == "**")
        next[i] = true;
      else if (component_fits(wanted[i], name))
        next[i + 1] = true;
    }
    reached = std::move(next);
    skip_stars();
  }
  return reached;
}

bool leads_to(std::string_view pattern, std::string_view folder) {
  const auto reached = progress(pattern, folder);
  return std::find(reached.begin(), std::prev(reached.end()), true) != std::prev(reached.end());
}

// Whether to look into a folder, `path` below the root.
bool enters(const FileSet& set, const fs::directory_entry& folder, const std::string& path) {
  const std::string name = folder.path().filename().string();
  if (name.starts_with('.') || name.starts_with("build")) return false;
  std::error_code absent;  // a run directory that does not exist yet is nobody's equivalent
  if (!set.run_directory.empty() && fs::equivalent(folder.path(), set.run_directory, absent)) return false;
  return std::ranges::any_of(set.patterns, [&](const std::string& pattern) { return leads_to(pattern, path); });
}

// Adds every regular file below a folder, as its path below the root, but for folders that are not entered.
void walk(const FileSet& set, const std::string& below, std::vector<std::string>& files) {
  const fs::path folder = below.empty() ? set.root : set.root / below;
  std::error_code failure, broken_link;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
    const std::string name = at->path().filename().string(), path = below.empty() ? name : below + '/' + name;
    if (at->is_regular_file(broken_link))
      files.push_back(path);
    else if (at->is_directory(broken_link) && !at->is_symlink(broken_link) && enters(set, *at, path))
      walk(set, path, files);
  }
  if (failure)
    throw Error(Exit::file,
                fmt::format("{}: cannot be read: {}; data.root must be a folder that this user may read, with "
                            "those below it that data.files leads to",
                            folder.string(), failure.message()));
}

}  // namespace

bool fits(std::string_view pattern, std::string_view path) { return progress(pattern, path).back(); }

std::vector<fs::path> list_files(const FileSet& set) {
  std::vector<std::string> found;
  walk(set, "", found);
  std::set<std::string> chosen;
  for (const std::string& pattern : set.patterns) {
    bool any = false;
    for (const std::string& path : found)
      if (fits(pattern, path)) {
        chosen.insert(path);
        any = true;
      }
    if (!any && pattern.find_first_of("*?") == std::string::npos)
      throw Error(Exit::file,
                  fmt::format("{}: no such file; data.files names it (paths are relative to data.root; folders "
                              "that begin with '.' or 'build' and the run directory are left out)",
                              (set.root / pattern).string()));
  }
  if (chosen.empty())
    throw Error(Exit::file, fmt::format("{}: no file fits data.files [{}]; check data.root and the patterns",
                                        set.root.string(), fmt::join(set.patterns, ", ")));
  std::vector<fs::path> paths;
  for (const std::string& path : chosen) paths.push_back(set.root / path);
  return paths;
}

}  // namespace tessera
