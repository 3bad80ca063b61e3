#include "io/metrics/row_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "io/files/posix_file.hpp"
#include "io/files/text_file.hpp"

namespace tessera {
namespace {

Error unusable(const std::filesystem::path& path, int cause) {
  return {Exit::environment,
          fmt::format("{}: cannot be opened for writing: {}; make room or permit it, or name another "
                      "checkpoint.dir",
                      path.string(), std::strerror(cause))};
}

// Reads the whole file; returns 0 or an errno.
int read_all(int file, std::string& text) {
  char block[1 << 16];
  for (off_t at = 0;;) {
    const ssize_t n = ::pread(file, block, sizeof block, at);
    if (n == 0) return 0;
    if (n < 0 && errno != EINTR) return errno;
    if (n < 0) continue;
    text.append(block, static_cast<std::size_t>(n));
    at += n;
  }
}

// Step and restart of one line; key_of() returns nothing if the line is not a row.
struct RowKey {
  std::int64_t step, restart;
};
std::optional<RowKey> key_of(std::string_view line) {
  const auto row = nlohmann::json::parse(line, nullptr, false);
  if (!row.is_object() || !row.contains("step") || !row["step"].is_number_integer()) return std::nullopt;
  const auto restart = row.find("restart");
  return RowKey{row["step"].get<std::int64_t>(),
               restart != row.end() && restart->is_number_integer() ? restart->get<std::int64_t>() : 0};
}

}  // namespace

void tell_of_no_row(const std::filesystem::path& path, std::int64_t line, const std::string& fate) {
  static std::set<std::string> told;  // a run reads its record many times
  const std::string what = fmt::format("{}: is no row, and is {}", line, fate);
  if (told.insert(std::filesystem::absolute(path).lexically_normal().string() + ':' + what).second)
    fmt::print(stderr, "{}:{}\n", path.string(), what);
}

RowFile::RowFile(const std::filesystem::path& path, std::int64_t step) : path_(path) {
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) throw unusable(path, errno);
  struct ::stat about {};
  int cause = ::fstat(file_, &about) != 0 ? errno : S_ISREG(about.st_mode) ? 0 : EINVAL;
  std::string text;
  if (cause == 0) cause = read_all(file_, text);

  std::int64_t newest = -1;  // restart number of the newest row, even if that is dropped
  std::size_t kept = text.rfind('\n') + 1;
  while (kept > 0) {
    const std::size_t begin = kept < 2 ? 0 : text.rfind('\n', kept - 2) + 1;
    const auto key = key_of(std::string_view(text).substr(begin, kept - 1 - begin));
    if (!key && cause == 0)
      tell_of_no_row(path, 1 + std::count(text.begin(), text.begin() + std::ptrdiff_t(begin), '\n'), "dropped");
    if (key) newest = std::max(newest, key->restart);
    if (key) reached_ = std::max(reached_, key->step);
    if (key && key->step <= step) break;
    kept = begin;
  }
  bytes_ = static_cast<std::int64_t>(kept);
  last_ = kept < 2 ? 0 : static_cast<std::int64_t>(text.rfind('\n', kept - 2) + 1);
  restarts_ = newest >= 0 ? newest + 1 : step > 0 ? 1 : 0;
  if (cause == 0 && kept < text.size() && ::ftruncate(file_, bytes_) != 0) cause = errno;
  if (cause != 0) {
    ::close(file_);
    throw unusable(path, cause);
  }
}

RowFile::~RowFile() { ::close(file_); }

void RowFile::replace_last(const std::string& lines) {
  const std::string before = read_text_file(path_).substr(0, static_cast<std::size_t>(last_));
  replace_text_file(path_, before + lines);
  const int file = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  if (file < 0) throw unusable(path_, errno);
  ::close(std::exchange(file_, file));
  bytes_ = last_ + std::ssize(lines);
}

Problems RowFile::append(const std::string& lines, std::int64_t step) {
  Problems problems;
  const int cause = write_all(file_, lines);
  if (cause == 0) {
    last_ = std::exchange(bytes_, bytes_ + std::ssize(lines));
    return problems;
  }
  std::string rest = "it keeps its earlier rows";
  if (::ftruncate(file_, bytes_) != 0) rest = "its last line is unfinished";
  problems.add(Exit::environment,
               fmt::format("{}: the row of step {} cannot be written: {}; {}; make room, then give the "
                           "same command again",
                           path_.string(), step, std::strerror(cause), rest));
  return problems;
}

}  // namespace tessera
