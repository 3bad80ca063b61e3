#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config.hpp"

namespace tessera {

/// The kind of source that gave a key its value.
enum class Source { standard, deck, base, override, derived };
constexpr std::string_view name_of(Source source) {
  constexpr std::string_view names[] = {"default", "deck", "base", "override", "derived"};
  return names[static_cast<int>(source)];
}

/// The origin of every key's value.
struct Provenance {
  struct Origin {
    Source source = Source::standard;
    std::string where;  ///< "moe.yaml:4:12" or "--set optimizer.lr=3e-4"; its section's place if none gives the key
    std::string base;   ///< the deck built on that gave it; empty: none did
  };
  std::string file;
  std::vector<std::string> bases;  ///< paths of the base decks, the nearest first
  std::map<std::string, Origin, std::less<>> origins;  ///< by key

  /// Message "place: key: text" of a finding. The place is that of the first of its keys given by an override. If there
  /// is none, it is that of the first given by the deck, then of the first given by a base.
  std::string located(const Finding& finding) const;
};

/// A deck that has been read. Its config is derived, except run.threads, which depends on the machine.
struct Deck {
  RunConfig config;
  Provenance provenance;
  std::uint64_t text_hash = 0;  ///< fnv1a64 of the texts of the deck and its bases, without overrides
};

/// One `--set key=value`.
struct Override {
  std::string key, value;
};
/// Throws Error{usage} unless it reads key=value.
Override override_of(const std::string& argument);

/// The bytes of a deck file, at most 1 MiB. A file that cannot be read is a problem (Exit::deck).
std::string read_deck_text(const std::string& path, Problems& problems);

/// Parses a deck strictly. Every unknown, duplicate, missing, mistyped or out-of-range key is a problem of its own
/// (Exit::deck), in the order of the file. Its text is "file:line:col: key: what, allowed ..., did you mean ...?".
/// Every contradiction among the other keys follows. `path` names the deck in messages. `base: other.yaml`, relative to
/// the deck's folder, supplies all keys that this deck does not give, section by section. A relative data.root is
/// relative to the folder of the deck that gives it. The result is valid only if no problem was added. Local.
Deck parse_deck(const std::string& text, const std::string& path, const std::vector<Override>& overrides,
                Problems& problems);

/// Parses the resolved deck that a checkpoint stores at `path`; it has no base, and may give keys that are retired
/// today. Throws Error{file} that lists all that is wrong with it.
Deck parse_saved_deck(const std::string& text, const std::string& path);

/// Reads and parses the deck at `path`: read_deck_text, then parse_deck.
Deck read_deck(const std::string& path, const std::vector<Override>& overrides, Problems& problems);

/// The resolved deck: every key with its value and, if the deck was read from a text, the origin of the value as a
/// comment. Parses to the same config.
std::string resolved_text(const Deck& deck);

}  // namespace tessera
