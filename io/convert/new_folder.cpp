#include "io/convert/new_folder.hpp"

#include <fmt/format.h>

#include <random>

#include "io/checkpoint/posix_file.hpp"

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

}  // namespace

NewFolder::NewFolder(const fs::path& name) : name_(named(name)) {
  refuse_existing(name_);
  std::random_device chance;
  path_ = name_.string() + fmt::format(".tmp.{:08x}", chance());
  std::error_code error;
  if (!fs::create_directory(path_, error))
    throw Error(Exit::environment,
                fmt::format("{}: cannot be made: {}", name_.string(), error ? error.message() : "it exists"));
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
