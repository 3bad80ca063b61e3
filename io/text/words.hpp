#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/text/splitting.hpp"

namespace tessera {

/// What becomes of the stretches of a text between which a pattern cuts: of Split and others in a tokenizer.json.
enum class Cutting { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// Cuts every piece by a pattern.
struct WordCut {
  Pattern pattern;
  Cutting cutting;
  bool inverted = false;  ///< takes what the pattern does not match as its matches
};

/// Puts a space before every piece that does not begin with one.
struct PrefixSpace {};

/// Spells every piece as a ByteLevel vocabulary does: a character a byte.
struct Spelling {};

/// The pre-tokenizers of a tokenizer.json in their order, which cut a text into the words that are encoded each by
/// itself.
class Words {
 public:
  void add(std::variant<WordCut, PrefixSpace, Spelling> step) { steps_.push_back(std::move(step)); }
  /// Whether there is a Spelling, without which words are characters and not bytes.
  bool spelled() const;
  /// The words' bytes in order.
  std::vector<std::string> of(std::string_view text) const;

 private:
  std::vector<std::variant<WordCut, PrefixSpace, Spelling>> steps_;
};

/// A token of the vocabulary, or a spelled word, as bytes. False if it has other characters than those that stand for a
/// byte. These are printable ones of Latin-1 for themselves, those from U+0100 on for the other bytes.
bool read_spelled(std::string_view token, std::string& bytes);

}  // namespace tessera
