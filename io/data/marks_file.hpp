#pragma once
#include <cstdint>
#include <filesystem>
#include <span>

#include "io/data/mapped_file.hpp"
#include "io/data/token_file.hpp"

namespace tessera {

/// Path of the marks beside a token file: its name with the ending .marks.
std::filesystem::path marks_beside(const std::filesystem::path& token_file);

/// The memory-mapped marks of a token file. The header is little-endian {int32 magic 20261127, int32 version 1, int64
/// count, uint32 CRC-32 (zlib's) of the token file's tokens}. Zeros follow up to 1024 bytes, then a byte of Mark a
/// token.
class MarksFile {
 public:
  /// Throws Error{file} with path, cause and remedy, also where the marks are of other tokens.
  explicit MarksFile(const TokenFile& of);

  std::span<const std::uint8_t> marks() const { return marks_; }  ///< valid as long as the object, even if it is moved

 private:
  MappedFile file_;
  std::span<const std::uint8_t> marks_;
};

}  // namespace tessera
