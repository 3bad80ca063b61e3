#include "io/files/text_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "io/files/fault.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {

std::string read_text_file(const std::filesystem::path& path) {
  const PosixFile file(path, PosixFile::Mode::read);
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, text.data(), std::ssize(text));
  refuse_git_lfs_pointer(path, text);
  return text;
}

void refuse_git_lfs_pointer(const std::filesystem::path& path, std::string_view beginning) {
  if (beginning.starts_with("version https://git-lfs"))
    throw Error(Exit::file, path.string() + ": is a pointer of git-lfs in place of the file: fetch the file itself "
                                            "with `git lfs pull` in its repository");
}

int write_synced(const std::filesystem::path& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return errno;
  int failure = write_all(file, text);
  while (!failure && (fault::fails() || ::fsync(file) != 0))
    if (errno != EINTR) failure = errno;
  if (::close(file) != 0 && !failure) failure = errno;
  return failure;
}

void refuse_other_file(const std::string& option, const std::filesystem::path& path, const std::string& beginning) {
  std::error_code absent;
  if (!std::filesystem::is_regular_file(path, absent)) return;
  std::string found(beginning.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(found.data(), std::ssize(found));
  if (file.gcount() > 0 && found != beginning)
    throw Error(Exit::usage, fmt::format("{} {}: is there, and is another kind of file; name one that is not there",
                                         option, path.string()));
}

void replace_text_file(const std::filesystem::path& path, const std::string& text) {
  std::error_code absent;
  if (std::filesystem::exists(path, absent) && !std::filesystem::is_regular_file(path, absent))
    throw Error(Exit::environment, path.string() + ": cannot be written: is there, and is no file");
  const std::string temporary = path.string() + ".tmp";
  int failure = write_synced(temporary, text);
  if (!failure && std::rename(temporary.c_str(), path.c_str()) != 0) failure = errno;
  if (!failure) return;
  ::unlink(temporary.c_str());
  throw Error(Exit::environment, fmt::format("{}: cannot be written: {}", path.string(), std::strerror(failure)));
}

}  // namespace tessera
