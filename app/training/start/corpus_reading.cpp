#include "app/training/start/corpus_reading.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {

WithMarks marks_wanted(const DataConfig& data) {
  if (data.loss_mask) return WithMarks::required;
  return data.documents == Documents::apart ? WithMarks::if_there : WithMarks::none;
}

CutTokens cut_tokens(const Prepared& run, const CutCorpus& one) {
  const DataConfig& data = run.deck.config.data;
  CutTokens cut{one.corpus.tokens(), one.windows, data.loss_mask ? one.corpus.marks() : nullptr, {}};
  if (data.documents == Documents::joined) return cut;
  cut.documents = {.apart = true, .marks = one.corpus.marks()};
  if (data.kind == DataKind::text) cut.documents.ends = one.corpus.ends();
  else if (run.tokenizer) cut.documents.separator = run.tokenizer->end_of_text().value_or(-1);
  return cut;
}

void require_documents(const Prepared& run, const CutCorpus& one, Problems& problems) {
  const DataConfig& data = run.deck.config.data;
  if (data.documents == Documents::joined || data.kind == DataKind::text || one.corpus.marks()) return;
  if (data.tokenizer.empty() || (run.tokenizer && !run.tokenizer->end_of_text()))
    problems.add(Exit::deck,
                 run.deck.provenance.located(
                     {{"data.documents"},
                      fmt::format("apart: nothing says where documents begin: the token files have no .marks beside "
                                  "them, and {}",
                                  data.tokenizer.empty() ? "there is no data.tokenizer, whose end-of-text token would"
                                                         : "data.tokenizer has no end-of-text token")}));
}

void require_answers(const Prepared& run, Problems& problems) {
  if (!run.deck.config.data.loss_mask || !problems.empty()) return;
  const auto refuse = [&](const char* key, const std::string& text) {
    problems.add(Exit::file, run.deck.provenance.located({{key, "data.loss_mask"}, text}));
  };
  for (const CutCorpus& one : run.corpora)
    if (count_targets(cut_tokens(run, one), 0, one.windows.train) == 0)
      refuse("data.files", (one.name.empty() ? "" : one.name + ": ") + "no window for training holds an answer");
  for (const CutCorpus* set : run.evaluated()) {
    const std::int64_t windows = std::min(set->windows.evaluation, run.most_evaluated);
    if (windows == 0 || count_targets(cut_tokens(run, *set), set->windows.train, windows) > 0) continue;
    const DataConfig& data = run.deck.config.data;
    const bool named = std::ranges::find(data.eval_sets, set->name, &EvalSet::name) != data.eval_sets.end();
    refuse(named ? "data.eval_sets" : data.eval_files.empty() ? "data.eval_fraction" : "data.eval_files",
           fmt::format("{}none of the {} evaluated windows holds an answer: keep more windows, or raise eval.batches",
                       named ? set->name + ": " : "", windows));
  }
}

}  // namespace tessera
