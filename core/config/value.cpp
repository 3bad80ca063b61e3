#include "core/config/value.hpp"

#include <charconv>

#include <fmt/format.h>

namespace tessera {

std::string deck_text(double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  return std::string(digits, end);
}

std::string deck_text(const std::string& value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') text += {'\\', c};
    else if (c == '\n') text += "\\n";
    else if (c == '\t') text += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) text += fmt::format("\\x{:02x}", c);
    else text += c;
  }
  return text + '"';
}

namespace {
// A limit of a range, without an exponent, since limits are round numbers.
std::string limit_text(double limit) {
  const bool whole = limit >= 0 && limit < 1e15 && limit == static_cast<double>(static_cast<std::int64_t>(limit));
  return whole ? std::to_string(static_cast<std::int64_t>(limit)) : deck_text(limit);
}
}  // namespace

std::string Range::text() const {
  if (high == std::numeric_limits<double>::infinity()) return (includes_low ? ">= " : "> ") + limit_text(low);
  if (low == high) return limit_text(low);
  if (includes_low && includes_high) return limit_text(low) + " to " + limit_text(high);
  return (includes_low ? "[" : "(") + limit_text(low) + ", " + limit_text(high) + (includes_high ? "]" : ")");
}

std::string allowed_text(Text rule) {
  switch (rule) {
    case Text::any: return "any text";
    case Text::line: return "one line of text";
    case Text::line_or_empty: return "one line of text, or none";
  }
  return "";
}

std::string joined(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

}  // namespace tessera
