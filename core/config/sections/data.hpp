#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config/section.hpp"
#include "core/config/structure.hpp"

namespace tessera {

/// A corpus that is evaluated on by itself, with a name for its figures.
struct EvalSet {
  std::string name;
  std::vector<std::string> files;

  static constexpr const char* type_name = "an evaluation set";
  static constexpr const char* allowed = "{name: ..., files: [...]}";
  static constexpr std::array<std::string_view, 0> short_forms = {};
  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.required("name", self.name, Text::line, told, "Its name in logs and records: letters, digits, - and _");
    v.required("files", self.files, Text::line, told, "Patterns, as those of data.files");
  }
  bool operator==(const EvalSet&) const = default;
};

/// The name of the set that data.eval_files or data.eval_fraction gives, beside named ones.
inline constexpr const char* held_out = "held";

/// Section `data` of a deck.
struct DataConfig {
  DataKind kind = DataKind::text;
  Derived<std::string> root;  ///< absolute once a deck is read
  std::vector<std::string> files;
  std::vector<double> mixture;
  std::vector<std::string> eval_files;
  std::vector<EvalSet> eval_sets;
  std::string tokenizer;  ///< absolute once a deck is read
  Derived<double> eval_fraction;
  EvalWindows eval_windows = EvalWindows::drawn;
  std::uint64_t eval_seed = 1234;
  bool shuffle = true;
  Derived<std::uint64_t> seed;
  bool loss_mask = false;
  Documents documents = Documents::joined;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("kind", self.kind, OneOf(), on_request,
          "text: bytes are tokens; tokens: .bin files of llm.c, or of Megatron with their .idx");
    v.derived("root", self.root, Text::line, contents, "the deck's folder",
              "Folder of the files, relative to the deck's folder; another corpus: --allow-change");
    v.required("files", self.files, Text::line, contents,
               "Patterns below root, or absolute ones; * within a folder's name, ** crosses folders, but for links and "
               "those that begin with '.' or 'build'; another corpus: --allow-change");
    v.key("mixture", self.mixture, above_to(0, 1e6), on_request,
          "Weights, one for each pattern of files, which then is a corpus by itself: their shares of the samples, "
          "whatever the sizes; none: files are one corpus");
    v.key("eval_files", self.eval_files, Text::line_or_empty, told,
          "Patterns, as those of files, of a corpus that is evaluated on alone; none: eval_fraction says");
    v.key("eval_sets", self.eval_sets, Structure(), told,
          "Further corpora that are evaluated on, each by its name: losses of their own in log, records and report. "
          "That of eval_files or eval_fraction is then called held");
    v.key("tokenizer", self.tokenizer, Text::line_or_empty, contents,
          "tokenizer.json of token files, relative to the deck's folder: for prompts, samples and the vocabulary");
    v.derived("eval_fraction", self.eval_fraction, from_below(0, 1), on_request,
              "0.05 for text, 0 for token files, with eval_files, eval_sets or a mixture",
              "Share of the windows that training never sees, kept for evaluation");
    v.key("eval_windows", self.eval_windows, OneOf(), on_request,
          "Which windows are evaluated. drawn: from all files, by eval_seed; tail: the last ones in the order of the "
          "files' names, or of eval_files the first");
    v.key("eval_seed", self.eval_seed, at_least(0), on_request,
          "Seed of drawn evaluation windows, whatever run.seed is: runs that differ in their seed compare");
    v.key("shuffle", self.shuffle, OneOf(), on_request,
          "Visit the windows of each epoch in an order drawn from the seed");
    v.derived("seed", self.seed, at_least(0), fixed, "run.seed", "Seed of the data order");
    v.key("loss_mask", self.loss_mask, OneOf(), on_request,
          "Train and evaluate on the tokens alone that the .marks file beside each token file calls answers, as "
          "prepare.py --chat writes it");
    v.key("documents", self.documents, OneOf(), on_request,
          "joined: attention crosses the documents of a window; apart: it stays within each, whose positions begin at "
          "0. Documents begin where .marks files say, else at the tokenizer's end-of-text token; of text, with files");
  }

  /// Whether windows of files, or eval_files, are for evaluation. eval_fraction must be filled.
  bool holds_out() const { return eval_fraction > 0.0 || !eval_files.empty(); }
  /// Whether there is an evaluation set; likewise.
  bool evaluates() const { return holds_out() || !eval_sets.empty(); }
  /// The names of the evaluation sets, in their order; a single one of eval_files or eval_fraction has none.
  std::vector<std::string> evaluation_names() const;

  void derive(const RunConfig& config);
  void check(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const DataConfig&) const = default;
};

}  // namespace tessera
