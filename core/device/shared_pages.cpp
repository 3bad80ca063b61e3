#include "core/device/shared_pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <string>
#include <utility>

namespace tessera {

SharedPages::SharedPages(std::int64_t bytes)
    : bytes_(bytes), file_(::memfd_create("tessera", MFD_CLOEXEC)) {
  if (file_ >= 0 && ::ftruncate(file_, bytes_) == 0) map();
  if (data_) return;
  if (file_ >= 0) ::close(file_);
  throw std::bad_alloc();
}

SharedPages::SharedPages(const Name& name) : bytes_(name.bytes) {
  const std::string path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
  file_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  // A file of the same number on another host may be shorter: pages behind its end could not be touched.
  if (file_ >= 0 && ::lseek(file_, 0, SEEK_END) == bytes_) map();
  if (file_ >= 0) ::close(std::exchange(file_, -1));
  if (!data_) throw std::bad_alloc();
}

SharedPages::SharedPages(SharedPages&& other) noexcept
    : bytes_(other.bytes_), file_(std::exchange(other.file_, -1)), data_(std::exchange(other.data_, nullptr)) {}

SharedPages::~SharedPages() {
  if (data_) ::munmap(data_, static_cast<std::size_t>(bytes_));
  if (file_ >= 0) ::close(file_);
}

void SharedPages::map() {
  void* const mapped =
      ::mmap(nullptr, static_cast<std::size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped != MAP_FAILED) data_ = static_cast<std::byte*>(mapped);
}

}  // namespace tessera
