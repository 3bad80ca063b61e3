#include "io/text/words.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>

namespace tessera {
namespace {

/// The character that stands for each byte.
const std::array<std::string, 256>& characters_of_bytes() {
  static const auto table = [] {
    std::array<std::string, 256> characters;
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const int code = printable ? b : next++;
      if (code < 0x80) characters[b] = static_cast<char>(code);
      else characters[b] = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    }
    return characters;
  }();
  return table;
}

const std::unordered_map<std::string, char>& bytes_of_characters() {
  static const auto table = [] {
    std::unordered_map<std::string, char> bytes;
    for (int b = 0; b < 256; ++b) bytes[characters_of_bytes()[b]] = static_cast<char>(b);
    return bytes;
  }();
  return table;
}

/// Joins each match to the stretch before it, unless that is a match too.
std::vector<TextStretch> joined_to_previous(const std::vector<TextStretch>& stretches) {
  std::vector<TextStretch> joined;
  bool matched = false;
  for (const TextStretch& stretch : stretches) {
    if (stretch.match && !matched && !joined.empty()) joined.back().end = stretch.end;
    else joined.push_back(stretch);
    matched = stretch.match;
  }
  return joined;
}

std::vector<TextStretch> joined_to_next(const std::vector<TextStretch>& stretches) {
  std::vector<TextStretch> joined;
  bool matched = false;
  for (auto stretch = stretches.rbegin(); stretch != stretches.rend(); ++stretch) {
    if (stretch->match && !matched && !joined.empty()) joined.back().begin = stretch->begin;
    else joined.push_back(*stretch);
    matched = stretch->match;
  }
  std::ranges::reverse(joined);
  return joined;
}

/// Joins neighbours of one kind.
std::vector<TextStretch> joined_alike(const std::vector<TextStretch>& stretches) {
  std::vector<TextStretch> joined;
  for (const TextStretch& stretch : stretches)
    if (!joined.empty() && joined.back().match == stretch.match) joined.back().end = stretch.end;
    else joined.push_back(stretch);
  return joined;
}

std::vector<TextStretch> kept(Cutting cutting, std::vector<TextStretch> stretches) {
  switch (cutting) {
    case Cutting::removed: std::erase_if(stretches, [](const TextStretch& stretch) { return stretch.match; }); break;
    case Cutting::isolated: break;
    case Cutting::merged_with_previous: return joined_to_previous(stretches);
    case Cutting::merged_with_next: return joined_to_next(stretches);
    case Cutting::contiguous: return joined_alike(stretches);
  }
  return stretches;
}

std::vector<std::string> cut(const WordCut& step, const std::vector<std::string>& pieces) {
  std::vector<std::string> finer;
  for (const std::string& piece : pieces) {
    std::vector<TextStretch> stretches = step.pattern.stretches(piece);
    if (step.inverted)
      for (TextStretch& stretch : stretches) stretch.match = !stretch.match;
    for (const TextStretch& stretch : kept(step.cutting, std::move(stretches)))
      if (stretch.end > stretch.begin) finer.push_back(piece.substr(stretch.begin, stretch.end - stretch.begin));
  }
  return finer;
}

std::string spelled_out(const std::string& piece) {
  std::string characters;
  for (const char byte : piece) characters += characters_of_bytes()[static_cast<unsigned char>(byte)];
  return characters;
}

}  // namespace

bool read_spelled(std::string_view token, std::string& bytes) {
  bytes.clear();
  for (std::size_t i = 0; i < token.size();) {
    const std::size_t length = static_cast<unsigned char>(token[i]) < 0x80 ? 1 : 2;
    const auto found = bytes_of_characters().find(std::string(token.substr(i, length)));
    if (found == bytes_of_characters().end()) return false;
    bytes += found->second;
    i += length;
  }
  return true;
}

bool Words::spelled() const {
  return std::ranges::any_of(steps_, [](const auto& step) { return std::holds_alternative<Spelling>(step); });
}

std::vector<std::string> Words::of(std::string_view text) const {
  std::vector<std::string> pieces{std::string(text)};
  for (const auto& step : steps_) {
    if (const auto* const by = std::get_if<WordCut>(&step)) {
      pieces = cut(*by, pieces);
    } else if (std::holds_alternative<PrefixSpace>(step)) {
      for (std::string& piece : pieces)
        if (!piece.starts_with(' ')) piece.insert(0, 1, ' ');
    } else if (&step == &steps_.back()) {
      return pieces;  // spelled and read back, they are as they were
    } else {
      for (std::string& piece : pieces) piece = spelled_out(piece);
    }
  }
  for (std::string& piece : pieces) {
    const std::string characters = std::move(piece);
    read_spelled(characters, piece);
  }
  return pieces;
}

}  // namespace tessera
