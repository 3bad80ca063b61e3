#include "io/data/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/base/error.hpp"

namespace tessera {

MappedFile::MappedFile(const std::filesystem::path& path) {
  const auto fail = [&](int cause) {
    throw Error(Exit::file, fmt::format("{}: cannot be read: {}", path.string(), std::strerror(cause)));
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(errno);
  struct ::stat about {};
  int cause = ::fstat(file, &about) == 0 ? 0 : errno;
  if (cause == 0 && !S_ISREG(about.st_mode)) cause = S_ISDIR(about.st_mode) ? EISDIR : EINVAL;
  if (cause == 0 && about.st_size > 0) {  // an empty file has nothing to map
    void* memory = ::mmap(nullptr, static_cast<std::size_t>(about.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    if (memory == MAP_FAILED)
      cause = errno;
    else
      bytes_ = {static_cast<const std::byte*>(memory), static_cast<std::size_t>(about.st_size)};
  }
  ::close(file);
  if (cause != 0) fail(cause);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace tessera
