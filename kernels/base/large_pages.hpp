#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

/// Of host memory that nobody has written yet: in large pages where the system gives them on request. Fewer addresses
/// to look up, and a device that fetches bytes itself is told of one piece for 512.
void ask_for_large_pages(void* data, std::int64_t bytes) noexcept;

/// Host memory in blocks of a large page each. Not written before its first use, and returned to the system at the end.
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
  std::size_t mapped_;  ///< bytes, more than those that are used, wherever they begin
  void* mapping_;
  std::byte* first_;
};

}  // namespace tessera
