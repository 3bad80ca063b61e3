#include "io/convert/json_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "io/files/posix_file.hpp"
#include "io/files/text_file.hpp"

namespace tessera {
namespace {

bool in_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/// The begin of the word to which the byte at `at` belongs, or `at`.
std::size_t word_begin(std::string_view text, std::size_t at) {
  while (at > 0 && at < text.size() && in_word(text[at]) && in_word(text[at - 1])) --at;
  return at;
}

/// "FILE:LINE:COLUMN" of a byte of the text.
std::string place_of(const std::string& text, std::size_t at, const std::filesystem::path& path) {
  const std::string before = text.substr(0, at);
  const std::size_t line_begin = before.rfind('\n') + 1;  // npos + 1 == 0: the first line
  return fmt::format("{}:{}:{}", path.string(), 1 + std::ranges::count(before, '\n'), 1 + at - line_begin);
}

/// The number that a message of the JSON library has between quotation marks.
std::string number_in(const std::string& message) {
  const std::size_t begin = message.find('\'') + 1, end = message.rfind('\'');
  return begin > 0 && end > begin ? message.substr(begin, end - begin) : "";
}

/// What begins at a byte of the text and is no JSON there: a word, else a character.
std::string what_stands_at(std::string_view text, std::size_t at) {
  if (at >= text.size()) return "the text ends within a value";
  std::size_t end = at;
  while (end < text.size() && in_word(text[end])) ++end;
  const std::string_view word = text.substr(at, end - at);
  for (const std::string_view name : {"NaN", "Infinity", "-Infinity"})
    if (word == name) return fmt::format("{} is no number of JSON, though Python writes it", name);
  if (!word.empty()) return fmt::format("'{}' is unexpected", word.substr(0, 40));
  const auto c = static_cast<unsigned char>(text[at]);
  return c >= 0x20 && c < 0x7F ? fmt::format("'{}' is unexpected", text[at])
                               : fmt::format("byte 0x{:02X} is unexpected", c);
}

}  // namespace

nlohmann::ordered_json json_object(const std::string& text, const std::filesystem::path& path) {
  nlohmann::ordered_json json;
  try {
    json = nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const std::size_t at = word_begin(text, std::min(error.byte > 0 ? error.byte - 1 : 0, text.size()));
    throw Error(Exit::file,
                fmt::format("{}: is no JSON: {}", place_of(text, at, path), what_stands_at(text, at)));
  } catch (const nlohmann::json::out_of_range& error) {
    const std::string number = number_in(error.what());
    throw Error(Exit::file, fmt::format("{}: {} is larger than any number that is read, 1.8e308",
                                        place_of(text, std::min(text.find(number), text.size()), path), number));
  }
  if (!json.is_object()) throw Error(Exit::file, path.string() + ": is no JSON object");
  return json;
}

nlohmann::ordered_json read_json_object(const std::filesystem::path& path) {
  return json_object(read_text_file(path), path);
}

}  // namespace tessera
