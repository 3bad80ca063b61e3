#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/config/rule.hpp"

namespace tessera {

/// Documentation of one key or section of the deck.
struct KeyDoc {
  enum class Kind { key, section };
  Kind kind = Kind::key;
  std::string path;           ///< "model.moe.experts"
  std::string type;           ///< "an integer"
  std::string standard;       ///< the default, "none (required)", or "derived: ..."
  std::string allowed;
  Restart restart = Restart::fixed;
  std::string help;
  std::vector<std::string> short_forms;  ///< keys below it that a word in its place gives
};

/// Documentation of every key and section that the parser knows, in the order of the deck.
const std::vector<KeyDoc>& key_docs();
/// The entry of a path, or null.
const KeyDoc* find_key(std::string_view path);

/// The known path nearest to an unknown one by edit distance; empty if none is near.
std::string nearest_key(std::string_view path);
/// Suggestions for `word`: the nearest of `words`, nearest first, at most `most`; ties in the order of the list.
std::vector<std::string> near_words(std::string_view word, const std::vector<std::string>& words, std::size_t most);
/// The nearest of `words`; empty if none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& words);

}  // namespace tessera
