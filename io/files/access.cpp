#include "io/files/access.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

namespace tessera {

namespace fs = std::filesystem;

namespace {

template <std::size_t n>
bool among(const std::array<int, n>& causes, int cause) {
  return std::ranges::find(causes, cause) != causes.end();
}

}  // namespace

Exit blame_of(int cause) {
  constexpr std::array of_the_path = {ENOENT, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG, ENXIO, ENODEV};
  return among(of_the_path, cause) ? Exit::file : Exit::environment;
}

Error unreadable(const fs::path& path, std::string_view what, int cause) {
  const Exit blame = blame_of(cause);
  std::string advice;
  if (cause == EACCES || cause == EPERM)
    return {blame, fmt::format("{}: {}: this user may not read it: {}; make it readable, or move it away",
                               path.string(), what, std::strerror(cause))};
  if (cause == EAGAIN)
    advice = "; another program holds it: close it there (or set HDF5_USE_FILE_LOCKING=FALSE if it only reads)";
  else if (blame == Exit::environment)
    advice = "; that says nothing about its content: give the command again once it has passed";
  return {blame, fmt::format("{}: {}: {}{}", path.string(), what, std::strerror(cause), advice)};
}

bool soon_passes(int cause) {
  constexpr std::array passing = {EINTR, EAGAIN, ESTALE};
  static_assert(EAGAIN == EWOULDBLOCK);
  return among(passing, cause);
}

int patiently(const std::function<int()>& call) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> deadline;
  for (std::chrono::milliseconds pause{1};; pause = std::min(2 * pause, std::chrono::milliseconds(100))) {
    const int cause = call();
    if (!soon_passes(cause)) return cause;
    if (!deadline) deadline = Clock::now() + std::chrono::seconds(2);
    if (Clock::now() > *deadline) return cause;
    std::this_thread::sleep_for(pause);
  }
}

Entry entry_at(const fs::path& path) {
  fs::file_type type = fs::file_type::none;
  const int cause = patiently([&] {
    std::error_code error;
    type = fs::status(path, error).type();
    return error.value();
  });
  switch (type) {
    case fs::file_type::not_found:
      return Entry::none;
    case fs::file_type::regular:
      return Entry::file;
    case fs::file_type::directory:
      return Entry::folder;
    case fs::file_type::none:
      if (blame_of(cause) == Exit::file) return Entry::none;
      throw unreadable(path, "cannot be seen", cause);
    default:
      return Entry::other;
  }
}

std::optional<std::vector<fs::path>> list_folder(const fs::path& path) {
  if (entry_at(path) != Entry::folder) return std::nullopt;
  std::vector<fs::path> entries;
  const int cause = patiently([&] {
    std::error_code error;
    entries.clear();
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) entries.push_back(*at);
    return error.value();
  });
  if (cause != 0 && blame_of(cause) == Exit::file) return std::nullopt;  // removed meanwhile
  if (cause != 0) throw unreadable(path, "cannot be listed", cause);
  return entries;
}

}  // namespace tessera
