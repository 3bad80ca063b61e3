#include "app/training/preparation.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "app/cli/gpus.hpp"
#include "app/cli/memory.hpp"
#include "app/cli/threads.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/data/file_set.hpp"
#include "io/files/text_file.hpp"
#include "io/metrics/console.hpp"
#include "io/metrics/run_directory.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

/// Token files lie beside the tokenizer that they were made with, if any: it must be the deck's.
void against_another_tokenizer(const Prepared& run, const std::filesystem::path& file, Problems& problems) {
  const std::filesystem::path beside = file.parent_path() / tokenizer_file;
  std::error_code absent;
  if (run.tokenizer && std::filesystem::exists(beside, absent) && read_text_file(beside) != run.tokenizer->text())
    problems.add(Exit::file, run.deck.provenance.located(
                                 {{"data.tokenizer"}, fmt::format("is not the one that {} was made with, {}",
                                                                  file.string(), beside.string())}));
}

/// The files of some patterns of the deck, none where they are not sound.
std::optional<Corpus> corpus_of(const Prepared& run, const char* key, const std::vector<std::string>& patterns,
                                Problems& problems) {
  const RunConfig& config = run.deck.config;
  std::vector<Finding> findings;
  auto files = list_files({config.data.root.get(), patterns, config.checkpoint.dir.get(), key}, findings);
  for (const Finding& finding : findings) problems.add(Exit::file, run.deck.provenance.located(finding));
  if (!findings.empty()) return std::nullopt;
  for (const std::filesystem::path& file : files) against_another_tokenizer(run, file, problems);
  const bool text = config.data.kind == DataKind::text;
  Corpus corpus = text ? Corpus::text(std::move(files)) : Corpus::token_files(std::move(files));
  const std::int64_t vocab = config.model.vocab;
  corpus.check_vocabulary(run.tokenizer ? std::min(vocab, run.tokenizer->vocabulary()) : vocab, problems);
  return corpus;
}

void read_tokenizer(Prepared& run, Problems& problems) {
  const RunConfig& config = run.deck.config;
  if (config.data.tokenizer.empty() || config.data.kind == DataKind::text) return;
  const auto refuse = [&](Exit code, const char* key, const std::string& text) {
    problems.add(code, run.deck.provenance.located({{key}, text}));
  };
  try {
    run.tokenizer = std::make_shared<const Tokenizer>(std::filesystem::path(config.data.tokenizer));
  } catch (const Error& error) {
    return refuse(error.code(), "data.tokenizer", error.what());
  }
  if (run.tokenizer->vocabulary() > config.model.vocab)
    refuse(Exit::deck, "model.vocab",
           fmt::format("is {}, and data.tokenizer has {} tokens: leave it out, or give at least as many",
                       config.model.vocab.get(), run.tokenizer->vocabulary()));
  if (config.sample.tokens == 0) return;
  try {
    if (run.tokenizer->encode(config.sample.prompt).empty()) throw Error(Exit::deck, "has no token");
  } catch (const Error& error) {
    refuse(Exit::deck, "sample.prompt", error.what());
  }
}

void read_corpus(Prepared& run, Problems& problems) {
  const RunConfig& config = run.deck.config;
  read_tokenizer(run, problems);
  attempt(problems, [&] {
    run.corpus = corpus_of(run, "data.files", config.data.files, problems);
    if (run.corpus)
      run.windows =
          Windows::split(run.corpus->tokens().count(), config.model.seq_len, config.data.eval_fraction, problems);
  });
  if (config.data.eval_files.empty()) return;
  attempt(problems, [&] {
    run.held = corpus_of(run, "data.eval_files", config.data.eval_files, problems);
    if (run.held) run.held_windows = Windows::held(run.held->tokens().count(), config.model.seq_len, problems);
  });
}

/// The windows that training would evaluate: at most `most`.
void limit_evaluation(Prepared& run, std::int64_t most, Problems& problems) {
  Windows& windows = run.held ? run.held_windows : run.windows;
  if (problems.empty() && windows.evaluation == 0)
    problems.add(Exit::deck, run.deck.provenance.located(
                                 {{"data.eval_fraction", "data.kind"},
                                  "keeps no windows to evaluate on; give a share above 0, or data.eval_files"}));
  windows.evaluation = std::min(windows.evaluation, most);
}

void resolve_plan(Prepared& run, const Mpi& mpi, Control& control) {
  Problems problems;
  attempt(problems, [&] { run.plan.emplace(resolve(run.deck.config, mpi.size(), mpi.rank())); });
  control.agree(problems);
  const auto hash = static_cast<std::int64_t>(run.plan->layout.hash() >> 1);
  if (control.max(hash) != hash)
    problems.add(Exit::internal, "the ranks planned different layouts: are they the same binary?");
  problems.add(against_memory(mpi, control, *run.plan, run.gpu));
  control.agree(problems);
}

}  // namespace

Deck sound_deck(const std::string& path, const std::vector<Override>& overrides) {
  Problems problems;
  Deck deck = read_deck(path, overrides, problems);
  problems.raise();
  deck.config.run.threads.fill(host_threads(1));
  return deck;
}

Prepared examine(const std::string& deck, const std::vector<Override>& overrides, int ranks) {
  Prepared run;
  run.deck = sound_deck(deck, overrides);
  const RunConfig& config = run.deck.config;
  Runtime::plan_for(static_cast<int>(config.run.threads.get()));
  Problems problems;
  const std::vector<Finding> refused = refusals(config, ranks);
  for (const Finding& finding : refused) problems.add(Exit::deck, run.deck.provenance.located(finding));
  read_corpus(run, problems);
  check_run_directory(config.checkpoint.dir.get(), problems);
  if (refused.empty())
    attempt(problems, [&] { problems.add(against_memory(run.plan.emplace(resolve_largest(config, ranks)))); });
  problems.raise();
  return run;
}

Batches Prepared::batches() const {
  const CutTokens training{corpus->tokens(), windows};
  return {deck.config, training, held ? CutTokens{held->tokens(), held_windows} : training, plan->ranks.world};
}

const TextEncoding& Prepared::encoding() const {
  static const ByteEncoding bytes;
  return tokenizer ? static_cast<const TextEncoding&>(*tokenizer) : bytes;
}

std::string corpus_text(const Prepared& run) {
  const RunConfig& config = run.deck.config;
  const double sequences = static_cast<double>(config.run.steps) * static_cast<double>(config.batch.global);
  return fmt::format(
      "{}, {}; {} of {} for training, {} for evaluation; {:.2f} epochs in {} of {}",
      counted(run.corpus->files(), "file"), counted(run.corpus->tokens().count(), "token"),
      counted(run.windows.train, "window"), counted(run.windows.length, "token"),
      run.held ? run.held_windows.evaluation : run.windows.evaluation,
      sequences / static_cast<double>(run.windows.train), counted(config.run.steps, "step"),
      counted(config.batch.global, "sequence"));
}

Prepared prepare(const std::string& deck, const std::vector<Override>& overrides, Task task, const Mpi& mpi,
                 Control& control) {
  Prepared run;
  Problems problems;
  attempt(problems, [&] { run.deck = read_deck(deck, overrides, problems); });
  control.agree(problems);
  RunConfig& config = run.deck.config;
  config.run.threads.fill(host_threads(control.max(mpi.local_rank() + 1)));
  Runtime::plan_for(static_cast<int>(config.run.threads.get()));
  const std::int64_t evaluated = config.eval.batches * config.batch.global;
  if (task == Task::evaluation) {
    config.batch.global = round_up(config.batch.global, mpi.size() * config.batch.micro);
    config.debug.trace.clear();  // training's, as is
    config.debug.profile.clear();
  }
  for (const Finding& finding : refusals(config, mpi.size()))
    problems.add(Exit::deck, run.deck.provenance.located(finding));
  run.gpu = own_gpu(mpi);
  problems.add(against_gpus(mpi, control, config.parallel.oversubscribe ? Sharing::allowed : Sharing::refused));
  read_corpus(run, problems);
  if (task == Task::evaluation) limit_evaluation(run, evaluated, problems);
  control.agree(problems);
  resolve_plan(run, mpi, control);
  return run;
}

}  // namespace tessera
