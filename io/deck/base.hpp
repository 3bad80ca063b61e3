#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "io/deck/tree.hpp"

namespace tessera {

/// Turns a word in the place of a value with keys into those that it is short for, if `key` has such a value.
void expand_short_form(Node& word, std::string_view key);

/// The decks that a deck builds on.
struct Bases {
  std::vector<std::string> paths;  ///< the nearest first
  std::string texts;               ///< their texts, concatenated
  bool complete = true;            ///< whether all of them could be read
};

/// Removes `base: other.yaml` from a deck's tree and merges that deck's keys into it. This deck's keys win, sections
/// are merged key by key, a list is taken whole or not at all. The other deck may have a base of its own. Its path is
/// relative to the folder of `path`, the deck's own. A base that cannot be read or includes itself becomes a complaint
/// at the place of its `base` key.
Bases add_bases(Node& root, const std::string& path, Complaints& complaints);

}  // namespace tessera
