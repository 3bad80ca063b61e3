#include "io/files/new_folder.hpp"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "io/files/new_file.hpp"
#include "io/files/nonce.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// The absolute path without a slash at its end, so that filename and parent_path are those of the folder.
fs::path named(const fs::path& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

constexpr std::string_view unfinished = ".tmp.";

/// Unfinished folders NAME.tmp.NONCE of `name`.
std::vector<fs::path> beginnings_of(const fs::path& name) {
  const std::string prefix = name.filename().string() + std::string(unfinished);
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(name.parent_path(), error)) {
    const std::string other = entry.path().filename().string();
    if (other.starts_with(prefix) && other.size() == prefix.size() + nonce_digits &&
        other.find_first_not_of("0123456789abcdef", prefix.size()) == std::string::npos && entry.is_directory(error))
      found.push_back(entry.path());
  }
  return found;
}

}  // namespace

NewFolder::NewFolder(const fs::path& name) : name_(named(name)) {
  refuse_existing(name_);
  for (const fs::path& beginning : beginnings_of(name_)) clear_away(beginning, name_);
  path_ = name_.string() + std::string(unfinished) + nonce();
  std::error_code error;
  if (!fs::create_directory(path_, error))
    throw Error(Exit::environment,
                fmt::format("{}: cannot be made: {}", name_.string(), error ? error.message() : "it exists"));
  lock_.emplace(path_, PosixFile::Mode::read).lock();
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void NewFolder::commit() {
  sync_folder(path_);
  refuse_existing(name_);
  std::error_code error;
  fs::rename(path_, name_, error);
  if (error)
    throw Error(Exit::environment,
                fmt::format("{}: cannot become {}: {}", path_.string(), name_.string(), error.message()));
  sync_folder(name_.parent_path());
}

}  // namespace tessera
