#include "app/training/start/evaluated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "app/training/start/corpus_reading.hpp"
#include "core/config/values.hpp"
#include "io/metrics/console.hpp"
#include "kernels/digest/digest.hpp"
#include "kernels/loss/loss.hpp"

namespace tessera {
namespace {

/// Files of a corpus that its first `count` evaluation windows read from.
std::int64_t files_read(const CutCorpus& one, std::int64_t count) {
  const std::vector<std::int64_t>& ends = one.corpus.ends();
  const auto file_of = [&](std::int64_t token) { return std::ranges::upper_bound(ends, token) - ends.begin(); };
  std::vector<bool> read(ends.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t window = one.windows.train + i, first = one.windows.first_token(window);
    std::fill(read.begin() + file_of(first), read.begin() + file_of(first + one.windows.targets(window)) + 1, true);
  }
  return std::ranges::count(read, true);
}

/// Files that `count` windows drawn from the corpus read from, on average: a file of a share p of the tokens is missed
/// with probability (1 - p)^count.
double files_drawn(const Corpus& corpus, std::int64_t count) {
  double files = 0;
  std::int64_t begin = 0;
  for (const std::int64_t end : corpus.ends()) {
    const double share = static_cast<double>(end - begin) / static_cast<double>(corpus.tokens().count());
    files += 1 - std::pow(1 - share, static_cast<double>(count));
    begin = end;
  }
  return files;
}

/// The keys that say which windows of data.files are for evaluation, where that matters.
std::vector<std::string> cut_keys(const DataConfig& data) {
  std::vector<std::string> keys = {"model.seq_len", "data.eval_fraction", "data.eval_windows"};
  if (data.eval_windows == EvalWindows::drawn) keys.emplace_back("data.eval_seed");
  return keys;
}

}  // namespace

std::vector<Evaluated> evaluated_by(const Prepared& run) {
  const std::vector<std::string> names = run.deck.config.data.evaluation_names();
  std::vector<Evaluated> all;
  for (const CutCorpus* one : run.evaluated()) {
    Evaluated& set = all.emplace_back();
    set.name = names[all.size() - 1];
    set.kept = one->windows.evaluation;
    set.of_files = one->corpus.files();
    set.windows = std::min(set.kept, run.most_evaluated);
    set.answers = run.deck.config.data.loss_mask;
    set.tokens = count_targets(cut_tokens(run, *one), one->windows.train, set.windows);
    set.files = files_read(*one, set.windows);
    set.drawn_files = files_drawn(one->corpus, set.windows);
  }
  return all;
}

std::int64_t target_bytes(const Prepared& run, const CutCorpus& set) {
  if (run.deck.config.data.kind != DataKind::text && !run.tokenizer) return 0;
  const CutTokens cut = cut_tokens(run, set);
  const auto length = static_cast<std::size_t>(cut.windows.length);
  std::vector<std::int32_t> ids(length), targets(length), positions(cut.documents.apart ? length : 0);
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < std::min(set.windows.evaluation, run.most_evaluated); ++i) {
    const std::int64_t window = set.windows.train + i;
    read_window(cut, window, ids, targets, positions);
    for (const std::int32_t token : std::span(targets).first(static_cast<std::size_t>(cut.windows.targets(window))))
      if (token != no_target) bytes += std::ssize(run.encoding().bytes_of(token));
  }
  return bytes;
}

std::string extent_text(const Evaluated& taken) {
  const std::string files =
      taken.of_files > 1 ? fmt::format(", from {} of {} files", taken.files, taken.of_files) : std::string();
  return fmt::format("{} of {}, {}{}", taken.windows, counted(taken.kept, "window"),
                     counted(taken.tokens, taken.answers ? "answer token" : "token"),
                     files);
}

std::string doubt_text(const Evaluated& taken) {
  if (taken.drawn_files <= 4 * static_cast<double>(taken.files)) return "";
  return fmt::format("WARNING: the evaluated windows{} come from {} of {}, and drawn ones would from {:.0f}: see "
                     "data.eval_windows",
                     taken.name.empty() ? "" : " of " + taken.name, taken.files, counted(taken.of_files, "file"),
                     taken.drawn_files);
}

std::string evaluation_text(const Prepared& run) {
  std::string text;
  for (const Evaluated& taken : evaluated_by(run)) {
    const std::string name = taken.name.empty() ? "" : " " + taken.name;
    if (taken.windows > 0) text += fmt::format("; eval{}: {}", name, extent_text(taken));
    if (const std::string doubt = doubt_text(taken); !doubt.empty()) text += "; " + doubt;
  }
  return run.trained_copy.empty() ? text : text + "; WARNING: " + run.trained_copy;
}

std::string keep_windows(Prepared& run, const RunConfig& saved) {
  RunConfig& config = run.deck.config;
  constexpr const char* key = "data.eval_windows";
  auto& origins = run.deck.provenance.origins;
  const auto origin = origins.find(key);
  const bool open = origin == origins.end() || origin->second.source == Source::standard;
  if (!open || saved.data.eval_windows == config.data.eval_windows) return "";
  config.data.eval_windows = saved.data.eval_windows;
  if (origin != origins.end()) origin->second.source = Source::derived;
  if (run.plan) run.plan->config.data.eval_windows = saved.data.eval_windows;
  Problems problems;
  cut_again(run, problems);
  problems.raise();
  if (std::ranges::all_of(run.evaluated(), [](const CutCorpus* set) { return set->windows.evaluation == 0; }))
    return "";
  return fmt::format("{}: {}, as the weights were trained; what the default evaluates on they may have seen: write it "
                     "into the deck",
                     key, name_of(saved.data.eval_windows));
}

std::string overlap_text(const GivenWeights& given, const Prepared& run) {
  const RunConfig& config = run.deck.config;
  if (run.corpora.empty() || run.corpora.front().windows.evaluation == 0) return "";
  if (given.corpus_hash != hex(run.corpus_hash())) return "";
  const std::map<std::string, std::string> theirs = values_of(given.config), ours = values_of(config);
  std::string differences;
  for (const std::string& key : cut_keys(config.data))
    if (theirs.at(key) != ours.at(key))
      differences += fmt::format("{}{} {} there, {} here", differences.empty() ? "" : ", ", key, theirs.at(key),
                                 ours.at(key));
  if (differences.empty()) return "";
  return fmt::format("{}: WARNING: these weights were trained on other windows of this corpus ({}): they may have seen "
                     "some of those that are evaluated here",
                     given.path.string(), differences);
}

}  // namespace tessera
