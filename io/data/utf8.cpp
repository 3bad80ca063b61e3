#include "io/data/utf8.hpp"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

/// Whether these bytes may be the beginning of a character.
bool may_begin_one(std::string_view bytes) {
  // A beginning can be completed by bytes 0x80, except for the first bytes below.
  std::string longer(bytes);
  while (longer.size() < 4) {
    longer += '\x80';
    if (character_at(longer, 0) == longer.size()) return true;
  }
  // After these first bytes the second byte must not be 0x80 (it would be an overlong form).
  return bytes.size() == 1 && (bytes[0] == '\xE0' || bytes[0] == '\xF0');
}

}  // namespace

std::size_t character_at(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t k) { return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u; };
  const auto follows = [&](std::size_t k, unsigned low = 0x80, unsigned high = 0xBF) {
    return byte(k) >= low && byte(k) <= high;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return (first >= 0x20 && first != 0x7F) || first == '\t' || first == '\n' || first == '\r' ? 1 : 0;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF)
    return follows(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF) && follows(2) ? 3 : 0;
  if (first >= 0xF0 && first <= 0xF4)
    return follows(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF) && follows(2) && follows(3) ? 4 : 0;
  return 0;
}

std::string Characters::take(char byte) {
  pending_ += byte;
  std::string shown;
  while (!pending_.empty()) {
    const bool control = controls_ == Controls::kept && static_cast<unsigned char>(pending_[0]) < 0x80;
    if (const std::size_t length = control ? 1 : character_at(pending_, 0)) {
      shown += pending_.substr(0, length);
      pending_.erase(0, length);
    } else if (may_begin_one(pending_)) {
      break;
    } else {
      shown += replacement;  // once for the bytes that could have begun a character
      pending_.erase(0, std::max<std::size_t>(1, pending_.size() - 1));
    }
  }
  return shown;
}

std::string Characters::take(std::string_view bytes) {
  std::string shown;
  for (const char byte : bytes) shown += take(byte);
  return shown;
}

std::string text_of(std::string_view bytes) {
  Characters characters(Controls::kept);
  std::string text = characters.take(bytes);
  return text + characters.rest();
}

std::string Characters::rest() { return std::exchange(pending_, "").empty() ? "" : std::string(replacement); }

}  // namespace tessera
