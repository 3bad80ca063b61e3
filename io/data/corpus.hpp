#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/data/token_stream.hpp"
#include "io/data/marks_file.hpp"
#include "io/data/token_file.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

/// Whether a corpus reads the marks beside its token files. if_there: those of all its files or of none.
enum class WithMarks { none, if_there, required };

/// A corpus: the tokens of its files one after another. Every rank opens its own. Throws Error{file} with path, cause
/// and remedy if a file cannot be read or has the wrong format, or the corpus is empty. Local.
class Corpus {
 public:
  /// Text files joined without separator; each byte is a token (vocabulary 256). Held in memory, so that files may
  /// change during the run.
  static Corpus text(std::vector<std::filesystem::path> files);
  /// Token files one after another, memory-mapped, with their marks.
  static Corpus token_files(std::vector<std::filesystem::path> files, WithMarks marks = WithMarks::none);

  Corpus(Corpus&&) = default;
  Corpus& operator=(Corpus&&) = default;

  const TokenStream& tokens() const { return stream_; }
  /// One mark a token; null without marks.
  const TokenStream* marks() const { return marked_.empty() ? nullptr : &marks_; }
  std::int64_t files() const { return static_cast<std::int64_t>(paths_.size()); }
  /// Where each file ends, in tokens from the start of the whole.
  const std::vector<std::int64_t>& ends() const { return ends_; }
  /// Hash of the tokens, independent of how files and types hold them: sum_i mix64(token_i xor (i + 1) phi), mixed with
  /// the count. With marks, it is mixed with the same of these.
  std::uint64_t hash() const { return hash_; }

  /// Adds a problem (Exit::file) with file and position if a token is not below `vocabulary`.
  void check_vocabulary(std::int64_t vocabulary, Problems& problems) const;

 private:
  Corpus(std::vector<std::filesystem::path> paths, std::vector<std::int64_t> ends, std::vector<std::uint8_t> text,
         std::vector<TokenFile> mapped, std::vector<MarksFile> marked);

  std::vector<std::filesystem::path> paths_;
  std::vector<std::int64_t> ends_;
  std::vector<std::uint8_t> text_;
  std::vector<TokenFile> mapped_;
  std::vector<MarksFile> marked_;
  TokenStream stream_, marks_;
  std::uint64_t hash_ = 0;
  std::int64_t largest_ = 0;
};

}  // namespace tessera
