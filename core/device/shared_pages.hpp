#pragma once
#include <cstddef>
#include <cstdint>

namespace tessera {

/// Shared memory of a host (memfd), which other processes of this host can map. It ends with the last process that has
/// it open. Zero at first. Move-only.
class SharedPages {
 public:
  /// How another process of this host opens it.
  struct Name {
    std::int64_t process = 0, file = -1, bytes = 0;
  };

  /// Makes pages of this process. Throws std::bad_alloc.
  explicit SharedPages(std::int64_t bytes);
  /// Maps those of another process. Throws std::bad_alloc, also where that process is on another host.
  explicit SharedPages(const Name& name);
  SharedPages(SharedPages&& other) noexcept;
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;
  ~SharedPages();

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  int file() const { return file_; }

 private:
  void map();

  std::int64_t bytes_ = 0;
  int file_ = -1;
  std::byte* data_ = nullptr;
};

}  // namespace tessera
