#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config.hpp"

namespace tessera {

/// What gave a key its value.
enum class Source { standard, deck, base, override, derived };
constexpr std::string_view name_of(Source source) {
  constexpr std::string_view names[] = {"default", "deck", "base", "override", "derived"};
  return names[static_cast<int>(source)];
}

/// Where the value of every key comes from.
struct Provenance {
  struct Origin {
    Source source = Source::standard;
    std::string where;  ///< "moe.yaml:4:12" or "--set optimizer.lr=3e-4"; its section's place where nobody gave it
    std::string base;   ///< the deck built on that gave it; empty: none did
  };
  std::string file;
  std::vector<std::string> bases;  ///< the decks that it builds on, the nearest first
  std::map<std::string, Origin, std::less<>> origins;  ///< by key

  /// "place: key: text", at the first of the finding's keys that was overridden, else that the deck gave, else a deck
  /// that it builds on.
  std::string located(const Finding& finding) const;
};

/// A deck that was read: derived, but for what only the machine knows (run.threads).
struct Deck {
  RunConfig config;
  Provenance provenance;
  std::uint64_t text_hash = 0;  ///< fnv1a64 of the text as it was read and those of its bases, overrides apart
};

/// One `--set key=value`.
struct Override {
  std::string key, value;
};
/// Throws Error{usage} unless it reads key=value.
Override override_of(const std::string& argument);

/// The bytes of a deck file, at most 1 MiB. A file that cannot be read is a problem (Exit::deck).
std::string read_deck_text(const std::string& path, Problems& problems);

/// Strict: every unknown, duplicate, missing, mistyped or out-of-range key is a problem of its own (Exit::deck):
/// "file:line:col: key: what, allowed ..., did you mean ...?", in the order of the file; then every contradiction among
/// the sound keys. `path` names the deck and says where data.root begins. `base: other.yaml`, a path from the deck's
/// folder, takes all keys of that deck that this one does not give, section by section; a relative data.root counts
/// from the folder of the deck that gives it. The result counts only where no problem was added.
Deck parse_deck(const std::string& text, const std::string& path, const std::vector<Override>& overrides,
                Problems& problems);

/// The resolved deck that a checkpoint holds at `path`, which builds on no other. Throws Error{file} with all that is
/// wrong with it.
Deck parse_saved_deck(const std::string& text, const std::string& path);

/// read_deck_text, then parse_deck.
Deck read_deck(const std::string& path, const std::vector<Override>& overrides, Problems& problems);

/// Every key with its value and, as a comment, who gave it and where, if the deck was read from a text. Parses back to
/// the same config.
std::string resolved_text(const Deck& deck);

}  // namespace tessera
