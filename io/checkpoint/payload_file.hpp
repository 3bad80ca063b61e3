#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "io/files/posix_file.hpp"

namespace tessera {

/// A file of payload, open for reading. By any number of threads.
class PayloadFile {
 public:
  /// Throws Error{file}.
  explicit PayloadFile(const std::filesystem::path& path);
  PayloadFile(PayloadFile&& other) noexcept;
  PayloadFile& operator=(PayloadFile&&) = delete;
  ~PayloadFile();

  std::int64_t size() const { return size_; }
  /// Throws Error{file}, as PosixFile does.
  void read(std::int64_t offset, void* to, std::int64_t bytes) const { file_.read(offset, to, bytes); }
  /// For bytes that nobody reads again. What the system's cache lacks is read past it, which spares the processor a
  /// copy; where the file system cannot, as read() does. Returns where in `room`, of three pages more than the bytes,
  /// they are: as far behind a page's beginning as in the file. Twice as fast and more into LargePages.
  std::byte* read_once(std::int64_t offset, std::int64_t bytes, std::span<std::byte> room) const;

 private:
  /// Whether the system's cache seems to hold these bytes, or cannot be asked.
  bool in_cache(std::int64_t offset, std::int64_t bytes) const noexcept;

  PosixFile file_;
  std::int64_t size_;
  int direct_ = -1;          ///< past the cache; -1: the file system knows no such thing
  void* mapping_ = nullptr;  ///< asked which pages are in the cache, and never read; null: they cannot be told
};

}  // namespace tessera
