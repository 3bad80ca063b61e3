#include "io/checkpoint/payload_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "kernels/base/index.hpp"

namespace tessera {
namespace {

std::int64_t page_before(std::int64_t offset) { return offset / page_bytes * page_bytes; }

}  // namespace

PayloadFile::PayloadFile(const std::filesystem::path& path)
    : file_(path, PosixFile::Mode::read),
      size_(file_.size()),
      direct_(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)) {
  if (direct_ < 0 || size_ == 0) return;
  void* const mapping = ::mmap(nullptr, static_cast<std::size_t>(size_), PROT_READ, MAP_SHARED, direct_, 0);
  if (mapping != MAP_FAILED) mapping_ = mapping;
}

PayloadFile::PayloadFile(PayloadFile&& other) noexcept
    : file_(std::move(other.file_)),
      size_(other.size_),
      direct_(std::exchange(other.direct_, -1)),
      mapping_(std::exchange(other.mapping_, nullptr)) {}

PayloadFile::~PayloadFile() {
  if (mapping_) ::munmap(mapping_, static_cast<std::size_t>(size_));
  if (direct_ >= 0) ::close(direct_);
}

std::byte* PayloadFile::read_once(std::int64_t offset, std::int64_t bytes, std::span<std::byte> room) const {
  const std::int64_t begin = page_before(offset), end = round_up(offset + bytes, page_bytes);
  void* first = room.data();
  std::size_t left = room.size();
  require(std::align(page_bytes, static_cast<std::size_t>(end - begin), first, left), "read_once", "room is too small");
  std::byte* const to = static_cast<std::byte*>(first) + (offset - begin);
  // Whatever is short or fails past the cache is read again through it, which says why.
  if (in_cache(offset, bytes) ||
      ::pread(direct_, first, static_cast<std::size_t>(end - begin), begin) < offset + bytes - begin)
    file_.read(offset, to, bytes);
  return to;
}

bool PayloadFile::in_cache(std::int64_t offset, std::int64_t bytes) const noexcept {
  if (!mapping_ || offset < 0 || bytes <= 0 || offset + bytes > size_) return true;
  const auto holds = [this](std::int64_t at) {
    unsigned char there = 0;
    return ::mincore(static_cast<std::byte*>(mapping_) + page_before(at), 1, &there) != 0 || (there & 1) != 0;
  };
  return holds(offset) && holds(offset + bytes - 1);  // what lies between came with them, or is read through the cache
}

}  // namespace tessera
