#include "io/convert/new_folder.hpp"

#include <fmt/format.h>

#include <random>
#include <string_view>
#include <vector>

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// Without a slash at the end, so that it has a name and a folder above.
fs::path named(const fs::path& path) {
  const fs::path whole = fs::absolute(path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

void refuse_existing(const fs::path& name) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(name, error))) throw Error(Exit::file, name.string() + ": exists already");
}

constexpr std::string_view unfinished = ".tmp.";
constexpr std::size_t nonce_digits = 8;

/// Folders that were to become `name`.
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

/// Whether nobody fills a folder any more; throws where somebody does.
bool left_behind(const fs::path& beginning, const fs::path& name) {
  PosixFile::Lock lock = PosixFile::Lock::unknown;
  try {
    lock = PosixFile(beginning, PosixFile::Mode::read).lock();
  } catch (const Error&) {
    // Another user's, perhaps: told of below.
  }
  if (lock == PosixFile::Lock::refused)
    throw Error(Exit::environment, fmt::format("{}: another process is making it, as {}; wait for its end",
                                               name.string(), beginning.string()));
  return lock == PosixFile::Lock::taken;
}

void clear_away(const fs::path& beginning, const fs::path& name) {
  std::error_code error;
  const bool removed = left_behind(beginning, name) && fs::remove_all(beginning, error) > 0 && !error;
  fmt::print(stderr, "{}: {}\n", beginning.string(),
             removed ? "removed; a process that did not reach its end had left it"
                     : "may have been left behind by a process that did not reach its end; remove it if so");
}

}  // namespace

NewFolder::NewFolder(const fs::path& name) : name_(named(name)) {
  refuse_existing(name_);
  for (const fs::path& beginning : beginnings_of(name_)) clear_away(beginning, name_);
  std::random_device chance;
  path_ = name_.string() + fmt::format("{}{:0{}x}", unfinished, chance(), nonce_digits);
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
