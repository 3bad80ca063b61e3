#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "io/checkpoint/manifest.hpp"
#include "io/deck/deck.hpp"

namespace tessera {

/// The keys of `train --allow-change KEY,...`, each once. Throws Error{usage} for one that is unknown, named twice, or
/// that no run can change.
std::set<std::string> changeable(const std::vector<std::string>& keys);

/// A checkpoint that a run is to resume from.
struct SavedRun {
  explicit SavedRun(const std::filesystem::path& checkpoint);

  std::filesystem::path folder;
  Manifest manifest;
  Deck deck;
};

/// Why a run of `deck` on this corpus cannot resume: changed keys, another corpus, fewer steps than are done, but for
/// what was `asked` to change. Local.
Problems problems_with_resuming(const SavedRun& saved, const Deck& deck, std::uint64_t corpus_hash,
                               const std::set<std::string>& asked);

/// Changes by request (--allow-change): keys, and the corpus as data.files. Local.
std::vector<KeyChange> changes_since(const SavedRun& saved, const Deck& deck, std::uint64_t corpus_hash);

/// A line for each change, and for what becomes of the learning rate and of the order of samples. `epochs`: how far
/// those that were had so far go in the corpus as it is now. Empty: nothing changes. Local.
std::string changes_text(const SavedRun& saved, const RunConfig& now, const std::vector<KeyChange>& changes,
                         const std::string& epochs);

}  // namespace tessera
