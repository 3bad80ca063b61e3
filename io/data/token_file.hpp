#pragma once
#include <filesystem>

#include "core/data/token_stream.hpp"
#include "io/data/mapped_file.hpp"

namespace tessera {

/// A memory-mapped file of tokens. Two formats; a file with an index beside it is Megatron's:
///  - llm.c: 256 little-endian int32 of header {magic, version, count, 0...}, then the tokens; magic 20240520 with
///    version 1 holds uint16, magic 20240801 with version 7 uint32;
///  - Megatron: tokens alone in `<name>.bin`, type and document sizes in `<name>.idx`.
class TokenFile {
 public:
  /// Throws Error{file} with path, cause and remedy.
  explicit TokenFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  TokenSpan tokens() const { return tokens_; }  ///< valid as long as the object lives, even if it is moved

 private:
  std::filesystem::path path_;
  MappedFile file_;
  TokenSpan tokens_;
};

}  // namespace tessera
