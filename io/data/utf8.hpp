#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

/// Length of the UTF-8 character at `i`, or 0 where there is none: overlong forms, surrogates and control characters
/// other than tab and line ends are none. (Source: the Unicode standard, table 3-7.)
std::size_t character_at(std::string_view text, std::size_t i);

/// Decodes a stream of bytes into text that may be shown: what is no character becomes U+FFFD.
class Characters {
 public:
  /// Adds one byte, or several; returns the text that is complete now.
  std::string take(char byte);
  std::string take(std::string_view bytes);
  /// The text of what is left when no more comes.
  std::string rest();

 private:
  std::string pending_;
};

}  // namespace tessera
