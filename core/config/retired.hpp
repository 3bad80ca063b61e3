#pragma once
#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// A key, or one value of a key, that decks had once. Decks that give it are refused; stored decks, which name every
/// key, are still read.
struct Retired {
  std::string_view key;    ///< the path that decks gave: "gather.wire"
  std::string_view value;  ///< the value that is retired; empty: the key, whatever its value
  std::string_view now;    ///< the path, or the value, that takes its place; empty: none, and nothing is lost
  std::string_view why;    ///< a sentence for what has gone, rather than been renamed; else empty
};

/// The only list of them.
std::span<const Retired> retired();

/// The entry of a key with that value, or null.
const Retired* find_retired(std::string_view key, std::string_view value);

/// A key that programs did not have once, with the value that they had built in, where that is not its default today.
/// Stored decks that lack the key are read with it.
struct BuiltIn {
  std::string_view key, value;
};

/// The only list of them.
std::span<const BuiltIn> built_in();

/// What a deck that gives it is told: "is proof.wire now, with the same values".
std::string refusal_of(const Retired& entry);

}  // namespace tessera
