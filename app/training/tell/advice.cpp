#include "app/training/tell/advice.hpp"

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "core/config/effects.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/storage.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::set<std::string> given_keys(const Provenance& provenance) {
  std::set<std::string> keys;
  for (const auto& [key, origin] : provenance.origins)
    if (origin.source != Source::standard && origin.source != Source::derived) keys.insert(key);
  return keys;
}

/// The run directory in which a deck lies, itself or as that of a checkpoint; empty if in none.
fs::path run_directory_of(const fs::path& deck) {
  std::error_code unknown;
  fs::path folder = fs::weakly_canonical(deck, unknown).parent_path();
  if (fs::exists(folder / manifest_file, unknown)) folder = folder.parent_path();
  Problems unreadable;
  bool is_one = fs::exists(folder / "run.json", unknown);
  attempt(unreadable, [&] { is_one = is_one || !step_folders(folder).empty(); });
  return is_one ? folder : fs::path();
}

/// Of the deck of a run that was moved or copied, and whose own key still names the old place.
std::vector<Finding> elsewhere(const Deck& deck) {
  const fs::path lies_in = run_directory_of(deck.provenance.file), directory = deck.config.checkpoint.dir.get();
  const auto origin = deck.provenance.origins.find("checkpoint.dir");
  const bool asked = origin != deck.provenance.origins.end() && origin->second.source == Source::override;
  std::error_code unknown;
  if (lies_in.empty() || asked || fs::weakly_canonical(directory, unknown) == lies_in) return {};
  return {{{"checkpoint.dir"},
           fmt::format("is {0}, where this run looks for checkpoints and writes, and the deck lies in the run "
                       "directory {1}: to go on with the run that is there, add --set checkpoint.dir={1}",
                       directory.string(), fs::proximate(lies_in, unknown).string())}};
}

}  // namespace

void print_advice(const Deck& deck) {
  for (const std::vector<Finding>& findings :
       {elsewhere(deck), advise(deck.config), without_effect(deck.config, given_keys(deck.provenance))})
    for (const Finding& finding : findings)
      fmt::print(stderr, "{} (allowed)\n", deck.provenance.located(finding));
}

}  // namespace tessera
