#include "io/files/posix_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/files/access.hpp"
#include "io/files/fault.hpp"
#include "kernels/base/index.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most = std::int64_t{1} << 30;  // largest number of bytes in one system call
constexpr std::int64_t worth_sending = std::int64_t{512} << 10;

Error failed(Exit code, const std::filesystem::path& path, const char* what, int cause) {
  return {code, fmt::format("{}: {}: {}", path.string(), what, std::strerror(cause))};
}

int flags_of(PosixFile::Mode mode) {
  constexpr int flags[] = {O_RDONLY, O_RDONLY, O_WRONLY, O_WRONLY, O_WRONLY | O_CREAT | O_TRUNC};
  return flags[static_cast<int>(mode)] | O_CLOEXEC;
}

}  // namespace

int write_all(int file, std::string_view bytes, std::optional<std::int64_t> offset) {
  for (std::int64_t done = 0; done < std::ssize(bytes);) {
    const char* const from = bytes.data() + done;
    const auto part = static_cast<std::size_t>(fault::portion(std::min(std::ssize(bytes) - done, most)));
    const ssize_t n = fault::fails() ? -1
                      : offset       ? ::pwrite(file, from, part, *offset + done)
                                     : ::write(file, from, part);
    if (n == 0) return ENOSPC;
    if (n > 0)
      done += n;
    else if (errno != EINTR)
      return errno;
  }
  return 0;
}

int write_plainly(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file, bytes.data(), bytes.size());
    if (n == 0) return ENOSPC;
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    else if (errno != EINTR) return errno;
  }
  return 0;
}

PosixFile::PosixFile(const std::filesystem::path& path, Mode mode) : PosixFile(path, -1) {
  const bool reads = mode == Mode::read || mode == Mode::read_payload;
  const int cause = patiently([&] {
    file_ = ::open(path.c_str(), flags_of(mode), 0644);
    return file_ < 0 ? errno : 0;
  });
  if (cause != 0)
    throw reads ? unreadable(path, "cannot be opened", cause)
                : failed(Exit::environment, path, "cannot be opened", cause);
  if (mode == Mode::read_payload || mode == Mode::payload) direct_ = ::open(path.c_str(), flags_of(mode) | O_DIRECT);
}

std::optional<PosixFile> PosixFile::exclusive(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0 && errno == EEXIST) return std::nullopt;
  if (file < 0) throw failed(Exit::environment, path, "cannot be made", errno);
  return PosixFile(path, file);
}

PosixFile::~PosixFile() {
  if (file_ >= 0) ::close(file_);
  if (direct_ >= 0) ::close(direct_);
}

std::int64_t PosixFile::size() const {
  struct ::stat about {};
  if (::fstat(file_, &about) != 0) throw unreadable(path_, "cannot be read", errno);
  return about.st_size;
}

bool PosixFile::named() const noexcept {
  struct ::stat mine = {};
  struct ::stat found = {};
  return ::fstat(file_, &mine) == 0 && ::stat(path_.c_str(), &found) == 0 && mine.st_dev == found.st_dev &&
         mine.st_ino == found.st_ino;
}

std::chrono::nanoseconds PosixFile::changed() const {
  struct ::stat about {};
  if (::fstat(file_, &about) != 0) throw unreadable(path_, "cannot be read", errno);
  return std::chrono::seconds(about.st_mtim.tv_sec) + std::chrono::nanoseconds(about.st_mtim.tv_nsec);
}

void PosixFile::touch() noexcept { ::futimens(file_, nullptr); }

void PosixFile::read(std::int64_t offset, void* to, std::int64_t bytes) const {
  for (std::int64_t done = 0; done < bytes;) {
    const auto part = static_cast<std::size_t>(std::min(bytes - done, most));
    ssize_t n = 0;
    const int cause = patiently([&] {
      n = ::pread(file_, static_cast<char*>(to) + done, part, offset + done);
      return n < 0 ? errno : 0;
    });
    if (cause != 0) throw unreadable(path_, "cannot be read", cause);
    if (n == 0) throw Error(Exit::file, path_.string() + ": ends early: it was truncated");
    done += n;
  }
}

void PosixFile::read_pages(std::int64_t begin, std::int64_t end, std::span<std::byte> room) const {
  const std::int64_t page = begin / page_bytes * page_bytes, pages = round_up(end, page_bytes) - page;
  require(pages <= std::ssize(room), "read_pages", "room is too small");
  // If direct I/O fails or reads too little, read again through the page cache, which reports the cause.
  if (end - begin < worth_pages ||
      ::pread(direct_, room.data(), static_cast<std::size_t>(pages), page) < end - page)
    read(begin, room.data() + (begin - page), end - begin);
}

void PosixFile::write(std::int64_t offset, const void* from, std::int64_t bytes) {
  const auto* const data = static_cast<const std::byte*>(from);
  const std::int64_t begin = round_up(offset, page_bytes), end = (offset + bytes) / page_bytes * page_bytes;
  const bool alike = (reinterpret_cast<std::int64_t>(from) - offset) % page_bytes == 0;
  if (direct_ < 0 || !alike || end - begin < worth_pages) return put(file_, offset, data, bytes);
  put(file_, offset, data, begin - offset);
  put(direct_, begin, data + (begin - offset), end - begin);
  put(file_, end, data + (end - offset), offset + bytes - end);
}

void PosixFile::put(int file, std::int64_t offset, const std::byte* from, std::int64_t bytes) {
  const std::string_view all(reinterpret_cast<const char*>(from), static_cast<std::size_t>(bytes));
  int failure = write_all(file, all, offset);
  if (failure == EINVAL && file == direct_)  // the file system wants larger blocks, or a partial write broke alignment
    failure = write_all(file = file_, all, offset);
  if (failure) throw failed(Exit::environment, path_, "cannot be written", failure);
  // Begins write-back where the file system can; a failure is ignored, since sync() checks that the bytes arrive.
  if (file == file_ && bytes >= worth_sending) ::sync_file_range(file, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void PosixFile::send_up_to(std::int64_t end) noexcept {
  if (end - sent_ < worth_sending) return;
  ::sync_file_range(file_, sent_, end - sent_, SYNC_FILE_RANGE_WRITE);
  sent_ = end;
}

void PosixFile::reserve(std::int64_t bytes) {
  int failure = 0;
  do failure = !fault::fails() && ::fallocate(file_, FALLOC_FL_KEEP_SIZE, 0, bytes) == 0 ? 0 : errno;
  while (failure == EINTR);
  // On a file system without reservations the free space has been checked before.
  if (failure != 0 && failure != EOPNOTSUPP && failure != ENOSYS)
    throw failed(Exit::environment, path_, "cannot be given its space", failure);
}

void PosixFile::keep_size() {
  while (fault::fails() || ::ftruncate(file_, size()) != 0)
    if (errno != EINTR) throw failed(Exit::environment, path_, "cannot be given its size", errno);
}

void PosixFile::sync() {
  while (fault::fails() || ::fsync(file_) != 0)
    if (errno != EINTR) throw failed(Exit::environment, path_, "cannot be written to the disk", errno);
}

PosixFile::Lock PosixFile::lock() noexcept {
  while (::flock(file_, LOCK_EX | LOCK_NB) != 0)
    if (errno != EINTR) return errno == EWOULDBLOCK ? Lock::refused : Lock::unknown;
  return Lock::taken;
}

int PosixFile::refuses_locks_of_parts() noexcept {
  struct ::flock part {};
  part.l_type = F_WRLCK;
  part.l_len = 1;
  return ::fcntl(file_, F_SETLK, &part) == 0 ? 0 : errno;
}

void sync_folder(const std::filesystem::path& folder) { PosixFile(folder, PosixFile::Mode::read).sync(); }

}  // namespace tessera
