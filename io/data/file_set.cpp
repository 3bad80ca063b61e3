#include "io/data/file_set.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>

namespace tessera {
namespace fs = std::filesystem;
namespace {

// Whether a name fits one component of a pattern, in which only `?` and `*` are wildcards. The program keeps the C
// locale, in which a character is a byte.
bool component_fits(std::string_view pattern, std::string_view name) {
  if (pattern.find('\0') != std::string_view::npos) return false;  // no name holds it
  std::string plain;
  for (const char c : pattern) {
    if (c == '[' || c == '\\') plain += '\\';
    plain += c;
  }
  return ::fnmatch(plain.c_str(), std::string(name).c_str(), 0) == 0;
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

bool has_wildcard(std::string_view text) { return text.find_first_of("*?") != std::string_view::npos; }

// A pattern and the folder that it is relative to, with links resolved.
struct Search {
  fs::path folder;
  std::string pattern;
};

// What stands at a path that is no regular file.
std::string what_is_at(const fs::path& path) {
  std::error_code failure;
  if (fs::is_symlink(fs::symlink_status(path, failure)) && !fs::exists(path, failure))
    return failure ? fmt::format("is a link that leads nowhere: {}", failure.message())
                   : fmt::format("is a broken link, to {}", fs::read_symlink(path, failure).string());
  switch (const fs::file_status status = fs::status(path, failure); status.type()) {
    case fs::file_type::directory:
      return "is a folder: name the files in it, as " + (path / "*").string();
    case fs::file_type::fifo:
      return "is a FIFO (named pipe), and a corpus is read more than once: write it to a file";
    case fs::file_type::socket:
      return "is a socket: name a file";
    case fs::file_type::block:
    case fs::file_type::character:
      return "is a device: name a file";
    default:
      return failure ? failure.message() : "is no file";
  }
}

fs::path resolved(const fs::path& path) {
  std::error_code unreadable;  // ignored: reading the path reports it
  const fs::path real = fs::weakly_canonical(path, unreadable);
  return unreadable ? path : real;
}

// Splits an absolute pattern: its leading components without wildcard, but never the last one, become the folder.
Search search_of(const fs::path& root, const fs::path& pattern) {
  if (pattern.is_relative()) return {root, pattern.string()};
  fs::path folder;
  std::string rest;
  for (auto part = pattern.begin(); part != pattern.end(); ++part)
    if (rest.empty() && !has_wildcard(part->native()) && std::next(part) != pattern.end())
      folder /= *part;
    else
      rest += (rest.empty() ? "" : "/") + part->string();
  return {resolved(folder), rest};
}

class Listing {
 public:
  Listing(const FileSet& set, std::vector<Finding>& findings)
      : root_(resolved(set.root)), run_directory_(set.run_directory), key_(set.key), findings_(findings) {}

  void add(const std::string& pattern) {
    const bool stars = has_wildcard(pattern);
    const auto parts = components(pattern);
    if (std::find(std::ranges::find_if(parts, has_wildcard), parts.end(), "..") != parts.end())
      return find(key_, pattern + ": has a '..' after a wildcard: name the folder itself, or an absolute path");
    const bool out = std::ranges::find(parts, "..") != parts.end();
    const Search search = search_of(root_, out ? root_ / pattern : fs::path(pattern));
    const fs::path named = search.folder / search.pattern;
    if ((out || fs::path(pattern).is_absolute()) && !stars) return take(named);
    const std::size_t findings = findings_.size();
    no_file_.clear();
    const bool any = walk(search, "");
    if (any || findings_.size() > findings || !readable(search.folder)) return;
    if (!stars && !no_file_.empty()) return find(key_, fmt::format("{}: {}", named.string(), what_is_at(named)));
    const std::string odd =
        no_file_.empty() ? "" : fmt::format("; {} {}", no_file_.string(), what_is_at(no_file_));
    find(key_, fmt::format("{}: {} below {} (folders that begin with '.' or 'build', links to folders and the "
                           "run directory are left out){}",
                           pattern, stars ? "fits no file" : "no such file", search.folder.string(), odd));
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> paths;
    for (const auto& [key, path] : chosen_) paths.push_back(path);
    return paths;
  }

 private:
  void find(const char* key, std::string text) { findings_.push_back({{key, key_}, std::move(text)}); }
  bool readable(const fs::path& folder) const { return !unreadable_.contains(folder); }

  // Adds a file, sorted by its path below the root, or by its absolute path if it is not below the root.
  void choose(const fs::path& file) {
    const fs::path below = file.lexically_relative(root_);
    chosen_.emplace(below.empty() || *below.begin() == ".." ? file.string() : below.string(), file);
  }

  void take(const fs::path& file) {
    std::error_code failure;
    if (fs::is_regular_file(file, failure)) return choose(file);
    find(key_, fmt::format("{}: {}", file.string(), what_is_at(file)));
  }

  // Whether to search a folder, whose path below the search's folder is `path`.
  bool enters(const Search& search, const fs::directory_entry& folder, const std::string& path) const {
    const std::string name = folder.path().filename().string();
    if (name.starts_with('.') || name.starts_with("build")) return false;
    std::error_code absent;  // ignored: a run directory that does not exist yet is equivalent to no folder
    if (!run_directory_.empty() && fs::equivalent(folder.path(), run_directory_, absent)) return false;
    return leads_to(search.pattern, path);
  }

  // Adds the regular files below a folder that match; returns whether there are any.
  bool walk(const Search& search, const std::string& below) {
    const fs::path folder = below.empty() ? search.folder : search.folder / below;
    std::error_code failure, broken_link;
    bool any = false;
    for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
      const std::string name = at->path().filename().string(), path = below.empty() ? name : below + '/' + name;
      if (at->is_regular_file(broken_link)) {
        if (!fits(search.pattern, path)) continue;
        choose(search.folder / path);
        any = true;
        continue;
      }
      if (no_file_.empty() && fits(search.pattern, path)) no_file_ = search.folder / path;
      if (at->is_directory(broken_link) && !at->is_symlink(broken_link) && enters(search, *at, path))
        any = walk(search, path) || any;
    }
    if (failure && unreadable_.insert(folder).second)
      find(search.folder == root_ ? "data.root" : key_,
           fmt::format("{} cannot be read: {}; it must be a folder that this user may read, with those below it that "
                       "{} leads to",
                       folder.string(), failure.message(), key_));
    return any;
  }

  fs::path root_, run_directory_;
  const char* key_;
  std::vector<Finding>& findings_;
  std::map<std::string, fs::path> chosen_;
  std::set<fs::path> unreadable_;
  fs::path no_file_;  // the first that fits the pattern and is no regular file
};

}  // namespace

bool fits(std::string_view pattern, std::string_view path) { return progress(pattern, path).back(); }

std::vector<fs::path> list_files(const FileSet& set, std::vector<Finding>& findings) {
  Listing listing(set, findings);
  for (const std::string& pattern : set.patterns) listing.add(pattern);
  return listing.files();
}

}  // namespace tessera
