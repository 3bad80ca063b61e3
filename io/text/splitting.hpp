#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Version of ICU; empty in a program built without ICU, where all functions below throw Error{environment}.
std::string unicode_library();

/// Position of the first byte of `text` that is not valid UTF-8, or npos.
std::size_t broken_utf8(std::string_view text);

/// Unicode's normalization forms.
enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalized(NormalForm form, std::string_view text);

/// Every character in lower case by itself, whatever stands beside it.
std::string lower_case(std::string_view text);

/// Bytes of white space with which a text begins or ends.
std::size_t spaces_at_begin(std::string_view text);
std::size_t spaces_at_end(std::string_view text);

/// Whether a text begins or ends with a character of words, as regular expressions have them.
bool word_at_begin(std::string_view text);
bool word_at_end(std::string_view text);

/// A stretch of a text: bytes `begin` to `end`, and whether the pattern matches it.
struct TextStretch {
  std::size_t begin, end;
  bool match;
};

/// A regular expression on UTF-8 text, as Oniguruma reads it: `.`, `^` and `$` know lines that end with a line feed.
class Pattern {
 public:
  /// Throws Error{file} with the pattern if it is no regular expression, or holds what Oniguruma reads otherwise.
  explicit Pattern(const std::string& expression);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  /// The whole text in order: matches and what is between them. Throws Error{usage} with the place where the search
  /// needs more memory than ICU takes, or some ten seconds.
  std::vector<TextStretch> stretches(std::string_view text) const;

 private:
  struct Expression;
  std::unique_ptr<Expression> expression_;
};

/// A regular expression that matches this text alone.
std::string literal(std::string_view text);

}  // namespace tessera
