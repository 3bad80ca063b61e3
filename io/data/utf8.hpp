#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

/// Length in bytes of the UTF-8 character at `i`; 0 if there is no valid one. Overlong forms, surrogates, and control
/// characters other than tab and line ends are invalid. Source: the Unicode standard, table 3-7.
std::size_t character_at(std::string_view text, std::size_t i);

/// What becomes of control characters other than tab and line ends: terminals obey them, JSON can write them.
enum class Controls { replaced, kept };

/// Decodes a stream of bytes into UTF-8 text: invalid bytes become U+FFFD, one for each sequence that begins a
/// character and does not complete it.
class Characters {
 public:
  explicit Characters(Controls controls) : controls_(controls) {}
  /// Adds one or several bytes; returns the text that they complete.
  std::string take(char byte);
  std::string take(std::string_view bytes);
  /// Ends the stream; returns the text of the bytes that are left.
  std::string rest();

 private:
  Controls controls_;
  std::string pending_;
};

/// The whole of `bytes` as text with its control characters.
std::string text_of(std::string_view bytes);

}  // namespace tessera
