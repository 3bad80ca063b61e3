#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <vector>

namespace tessera::test {

namespace detail {

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags) : file_(::open(path.c_str(), flags)) {
    if (file_ < 0) throw std::runtime_error("no such file: " + path.string());
  }
  ~Descriptor() { ::close(file_); }
  operator int() const { return file_; }

 private:
  int file_;
};

}  // namespace detail

/// Drops a file from the page cache, if its file system has a disk: reads then come from the disk.
inline void drop_from_cache(const std::filesystem::path& path) {
  const detail::Descriptor file(path, O_RDONLY);
  if (::fsync(file) != 0 || ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) != 0)
    throw std::runtime_error("cannot be dropped: " + path.string());
}

/// Number of pages of a (non-empty) file in the page cache.
inline std::ptrdiff_t cached_pages(const std::filesystem::path& path) {
  const detail::Descriptor file(path, O_RDONLY);
  const std::size_t bytes = std::filesystem::file_size(path), page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const mapping = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  std::vector<unsigned char> there((bytes + page - 1) / page);
  const bool told = mapping != MAP_FAILED && ::mincore(mapping, bytes, there.data()) == 0;
  if (mapping != MAP_FAILED) ::munmap(mapping, bytes);
  if (!told) throw std::runtime_error("cannot be asked: " + path.string());
  return std::ranges::count_if(there, [](unsigned char c) { return (c & 1) != 0; });
}

}  // namespace tessera::test
