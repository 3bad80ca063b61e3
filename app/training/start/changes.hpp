#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "core/config/restart.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/deck/deck.hpp"

namespace tessera {

/// The keys of `train --allow-change KEY,...`. Throws Error{usage} for a key that is unknown, given twice, or that no
/// resumed run can change.
std::set<std::string> changeable(const std::vector<std::string>& keys);

/// A checkpoint that a run is to resume from.
struct SavedRun {
  explicit SavedRun(const std::filesystem::path& checkpoint);

  std::filesystem::path folder;
  Manifest manifest;
  Deck deck;
};

/// Problems with resuming a run with `deck` and this corpus: changed keys and another corpus, unless `asked` allows the
/// change, and fewer steps than are done. Local.
Problems problems_with_resuming(const SavedRun& saved, const Deck& deck, std::uint64_t corpus_hash,
                               const std::set<std::string>& asked);

/// The changes since the run was saved, in changed_keys() and in the corpus (as data.files), of which `corpus` is the
/// hash as in a manifest.
/// Local.
std::vector<KeyChange> changes_since(const SavedRun& saved, const Launched& now, const std::string& corpus);

/// Text of the changes and of their effects on learning rate and order of samples. `epochs`: the samples so far as
/// epochs of the present corpus. Empty without changes. Local.
std::string changes_text(const SavedRun& saved, const RunConfig& now, const std::vector<KeyChange>& changes,
                         const std::string& epochs);

}  // namespace tessera
