#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace tessera {

/// A file's bytes, memory-mapped read-only. Move-only. Throws Error{file} with path and cause.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace tessera
