#include "app/training/start/changes.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "core/config/keys.hpp"
#include "core/config/other_names.hpp"
#include "core/optim/schedule.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/files/text_file.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

/// The keys that define the corpus: --allow-change with one of them allows another corpus.
constexpr const char* corpus_keys[] = {"data.files", "data.root", "data.kind"};

bool may_be_named(const KeyDoc& doc) {
  const bool asked = doc.restart == Restart::on_request || doc.restart == Restart::contents;
  return doc.kind == KeyDoc::Kind::key && asked;
}

std::string all_changeable() {
  std::string keys;
  for (const KeyDoc& doc : key_docs())
    if (may_be_named(doc)) keys += (keys.empty() ? "" : ", ") + doc.path;
  return keys;
}

/// Whether windows of data.files are evaluated on, and others than before.
bool cuts_otherwise(const RunConfig& now, const std::vector<KeyChange>& changes) {
  constexpr std::string_view cuts[] = {"data.files", "data.kind", "data.eval_fraction", "data.eval_windows",
                                       "data.eval_seed"};
  return now.data.eval_fraction > 0.0 && std::ranges::any_of(changes, [&](const KeyChange& change) {
           return std::ranges::find(cuts, change.key) != std::end(cuts);
         });
}

bool touches(const std::vector<KeyChange>& changes, std::string_view prefix) {
  return std::ranges::any_of(changes, [&](const KeyChange& change) { return change.key.starts_with(prefix); });
}

}  // namespace

std::set<std::string> changeable(const std::vector<std::string>& keys) {
  std::set<std::string> asked;
  for (const std::string& key : keys) {
    const auto refuse = [&](const std::string& why) {
      throw Error(Exit::usage, fmt::format("--allow-change {}: {}; it takes {}", key, why, all_changeable()));
    };
    const KeyDoc* const doc = find_key(key);
    if (!doc) refuse("unknown key" + meant_by(key));
    if (doc->kind == KeyDoc::Kind::section) refuse("is a section, name its keys");
    if (doc->restart == Restart::fixed) refuse("cannot change in a resumed run, whose weights and state depend on it");
    if (!asked.insert(key).second) refuse("is named twice");
  }
  return asked;
}

SavedRun::SavedRun(const std::filesystem::path& checkpoint)
    : folder(checkpoint),
      // Reads the manifest only: rank 0 has checked the structure of the files, which takes long with many tensors.
      manifest(parse_manifest(read_text_file(folder / manifest_file), folder / manifest_file)),
      deck(parse_saved_deck(read_text_file(folder / deck_file), (folder / deck_file).string())) {}

Problems problems_with_resuming(const SavedRun& saved, const Deck& deck, std::uint64_t corpus_hash,
                               const std::set<std::string>& asked) {
  Problems problems;
  for (const Finding& finding : changes_at_restart(saved.deck.config, deck.config, asked))
    problems.add(Exit::deck, deck.provenance.located(finding));
  const auto named = [&](const char* key) { return asked.contains(key); };
  if (saved.manifest.corpus_hash != hex(corpus_hash) && std::ranges::none_of(corpus_keys, named))
    problems.add(Exit::file,
                 fmt::format("data.files: the corpus has hash {}, and had {} when {} was saved: {}", hex(corpus_hash),
                             saved.manifest.corpus_hash, saved.folder.string(),
                             keep_it_text("data.files", Restart::on_request)));
  const std::int64_t done = saved.manifest.counters.step, steps = deck.config.run.steps;
  if (asked.contains("run.steps") && steps < done)
    problems.add(Exit::deck, deck.provenance.located(
                                 {{"run.steps"},
                                  fmt::format("is {}, and {} steps are done in {}: give at least as many", steps, done,
                                              saved.folder.string())}));
  return problems;
}

std::vector<KeyChange> changes_since(const SavedRun& saved, const Launched& now, const std::string& corpus) {
  std::vector<KeyChange> changes = changed_keys({saved.deck.config, saved.manifest.world_size}, now);
  if (corpus != saved.manifest.corpus_hash)
    changes.push_back({"data.files", "corpus " + saved.manifest.corpus_hash, "corpus " + corpus, Restart::on_request});
  return changes;
}

std::string changes_text(const SavedRun& saved, const RunConfig& now, const std::vector<KeyChange>& changes,
                         const std::string& epochs) {
  if (changes.empty()) return "";
  const StateCounters& counters = saved.manifest.counters;
  std::string text = fmt::format("changed after step {}:", counters.step);
  for (const KeyChange& change : changes) text += fmt::format(" {} {} -> {};", change.key, change.before, change.now);
  text.back() = '\n';
  const std::int64_t next = counters.step + 1, ended = saved.deck.config.run.steps;
  if (touches(changes, "run.steps") || touches(changes, "optimizer."))
    text += fmt::format("  learning rate: step {} has {:.3g}, and had {:.3g} before the change; the last one, {}, has "
                        "{:.3g}\n",
                        next, learning_rate(now.optimizer, now.run.steps, next),
                        learning_rate(saved.deck.config.optimizer, ended, std::min(next, ended)), now.run.steps,
                        learning_rate(now.optimizer, now.run.steps, now.run.steps));
  if (touches(changes, "batch.global") || touches(changes, "data."))
    text += fmt::format("  samples: none is left out, {} of a step from sample {} on, at {}{}\n", now.batch.global,
                        counters.next_sample, epochs,
                        touches(changes, "data.") ? "; in the order of the new corpus: windows may come again" : "");
  if (cuts_otherwise(now, changes))
    text += fmt::format("  evaluation: windows that steps up to {} were trained on may be among those evaluated now\n",
                        counters.step);
  return text;
}

}  // namespace tessera
