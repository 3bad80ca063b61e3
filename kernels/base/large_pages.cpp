#include "kernels/base/large_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "kernels/base/index.hpp"

namespace tessera {
namespace {

std::int64_t small_page() { return sysconf(_SC_PAGESIZE); }

}  // namespace

void ask_for_large_pages(void* data, std::int64_t bytes) noexcept {
  const std::int64_t page = small_page(), first = reinterpret_cast<std::int64_t>(data);
  const std::int64_t begin = round_up(first, page), end = (first + bytes) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), static_cast<std::size_t>(end - begin), MADV_HUGEPAGE);
}

LargePages::LargePages(std::size_t count)
    : mapped_((count + 1) * bytes - static_cast<std::size_t>(small_page())),
      mapping_(::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  first_ = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::int64_t>(mapping_), bytes));
  ask_for_large_pages(first_, static_cast<std::int64_t>(count) * bytes);
}

LargePages::~LargePages() { ::munmap(mapping_, mapped_); }

std::span<std::byte> LargePages::operator[](std::size_t index) const {
  return {first_ + index * bytes, static_cast<std::size_t>(bytes)};
}

}  // namespace tessera
