#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Where a value stands: line and column from 1 of the deck, of one that it builds on, or the `--set` argument that
/// gave it.
struct Place {
  int line = 0;
  int column = 0;
  std::string argument = {};  ///< "--set optimizer.lr=3e-4"; empty: in a file
  std::string base = {};      ///< path of the deck built on; empty: the deck itself
};

/// One thing wrong with a deck.
struct Complaint {
  Place place;
  std::string text;
};
using Complaints = std::vector<Complaint>;

/// A YAML value as written. Nothing is resolved: no type but for null, no alias, no merge.
struct Node {
  struct Entry;
  enum class Kind { null, scalar, list, map, broken };  ///< broken: complained about already
  enum class Style { plain, quoted };

  Kind kind = Kind::null;
  Style style = Style::plain;
  std::string text;  ///< of a scalar
  Place place;
  std::vector<Node> items;      ///< of a list
  std::vector<Entry> entries;   ///< of a map, in the order of the file, duplicates included

  Node* find(std::string_view name);
};
struct Node::Entry {
  std::string name;
  Place place;
  Node value;
};

/// The one document of a YAML text. Refuses what a deck has no use for, so that no text can hurt: bytes that are not
/// UTF-8, anchors and aliases, tags, keys that are not words, deep nesting, several documents.
Node parse_yaml(const std::string& text, Complaints& complaints);

/// The value of a `--set` argument: YAML when it begins with [ { " or ', else the text as it stands.
Node parse_argument(const std::string& argument, const std::string& value, Complaints& complaints);

}  // namespace tessera
