#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

/// Length in bytes of the UTF-8 character at `i`; 0 if there is no valid one: overlong forms, surrogates, and control
/// characters other than tab and line ends are invalid. Source: the Unicode standard, table 3-7.
std::size_t character_at(std::string_view text, std::size_t i);

/// Decodes a stream of bytes into printable UTF-8 text: invalid bytes become U+FFFD, one for
/// each sequence that begins a character and does not complete it.
class Characters {
 public:
  /// Adds one or several bytes; returns the text that they complete.
  std::string take(char byte);
  std::string take(std::string_view bytes);
  /// Ends the stream; returns the text of the bytes that are left.
  std::string rest();

 private:
  std::string pending_;
};

}  // namespace tessera
