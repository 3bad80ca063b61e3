#pragma once
#include <string>
#include <vector>

#include "io/deck/tree.hpp"

namespace tessera {

/// The decks that a deck builds on.
struct Bases {
  std::vector<std::string> paths;  ///< the nearest first
  std::string texts;               ///< one behind the other
  bool complete = true;            ///< all of them could be read
};

/// Takes `base: other.yaml` out of a deck's tree and fills in what that deck has and this one lacks: keys, and sections
/// key by key; a list is taken or left whole. The other deck may have a base of its own. `path` is the deck's, from
/// whose folder the other's counts. What cannot be read, or includes itself, is complained about where it is asked for.
Bases add_bases(Node& root, const std::string& path, Complaints& complaints);

}  // namespace tessera
