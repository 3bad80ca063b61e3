#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

/// Asks the system for large pages (madvise) behind host memory that has not been written yet. Fewer TLB misses, and a
/// disk or GPU that transfers by DMA gets one address for 512 small pages.
void ask_for_large_pages(void* data, std::int64_t bytes) noexcept;

/// Blocks of host memory, each a large page. Pages are taken on first use and returned to the system at the end.
class LargePages {
 public:
  static constexpr std::int64_t bytes = std::int64_t{2} << 20;  ///< of one

  /// Throws std::bad_alloc.
  explicit LargePages(std::size_t count);
  LargePages(const LargePages&) = delete;
  LargePages& operator=(const LargePages&) = delete;
  ~LargePages();

  std::size_t size() const { return mapped_ / bytes; }
  std::span<std::byte> operator[](std::size_t index) const;

 private:
  std::size_t mapped_;  ///< bytes of the mapping: room to align the first block
  void* mapping_;
  std::byte* first_;
};

}  // namespace tessera
