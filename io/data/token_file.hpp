#pragma once
#include <filesystem>

#include "core/data/token_stream.hpp"
#include "io/data/mapped_file.hpp"

namespace tessera {

/// A file of tokens, mapped. Two formats, told apart by whether an index lies beside the file:
///  - llm.c: 256 little-endian int32 of header {magic, version, count, 0...}, then the tokens; magic 20240520 with
///    version 1 holds uint16, magic 20240801 with version 7 uint32;
///  - Megatron: tokens alone in `<name>.bin`, type and document sizes in `<name>.idx`.
class TokenFile {
 public:
  /// Throws Error{file} with path, what is wrong, and the remedy.
  explicit TokenFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  TokenSpan tokens() const { return tokens_; }  ///< valid as long as the object, moves included

 private:
  std::filesystem::path path_;
  MappedFile file_;
  TokenSpan tokens_;
};

}  // namespace tessera
