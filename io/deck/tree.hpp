#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Place of a value: line and column (from 1) in the deck or in a base, or the `--set` argument that gave it.
struct DeckPosition {
  int line = 0;
  int column = 0;
  std::string argument = {};  ///< "--set optimizer.lr=3e-4"; empty: in a file
  std::string base = {};      ///< path of the base deck; empty: the deck itself
};

/// One thing wrong with a deck.
struct Complaint {
  DeckPosition place;
  std::string text;
};
using Complaints = std::vector<Complaint>;

/// A YAML value as written. Only null is told from text; types, aliases and merge keys are not resolved.
struct Node {
  struct Entry;
  enum class Kind { null, scalar, list, map, broken };  ///< broken: a complaint has been made
  enum class Style { plain, quoted };

  Kind kind = Kind::null;
  Style style = Style::plain;
  std::string text;  ///< of a scalar, or of the word that a map stands for
  DeckPosition place;
  std::vector<Node> items;      ///< of a list
  std::vector<Entry> entries;   ///< of a map, in the order of the file, with duplicates

  Node* find(std::string_view name);
};
struct Node::Entry {
  std::string name;
  DeckPosition place;
  Node value;
};

/// Turns a word into the map that it is short for: each of `keys` with that word.
void expand(Node& word, const std::vector<std::string>& keys);

/// Parses a YAML text of one document. Refuses what a deck does not need, so that no text can do harm. It refuses bytes
/// that are not UTF-8, anchors and aliases, tags, keys that are not words, deep nesting, several documents.
Node parse_yaml(const std::string& text, Complaints& complaints);

/// Parses the value of a `--set` argument: YAML if it begins with [ { " or ', else plain text.
Node parse_argument(const std::string& argument, const std::string& value, Complaints& complaints);

}  // namespace tessera
