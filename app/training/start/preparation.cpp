#include "app/training/start/preparation.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <numeric>

#include <fmt/format.h>

#include "app/cli/gpus.hpp"
#include "app/cli/hosts.hpp"
#include "app/cli/memory.hpp"
#include "app/cli/threads.hpp"
#include "app/training/start/changes.hpp"
#include "app/training/start/choices_files.hpp"
#include "app/training/start/corpus_reading.hpp"
#include "app/training/start/disk_room.hpp"
#include "app/training/start/evaluated.hpp"
#include "app/training/start/given_weights.hpp"
#include "core/config/recipe_schedule.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/data/file_set.hpp"
#include "io/data/mapped_file.hpp"
#include "io/data/no_text.hpp"
#include "io/files/text_file.hpp"
#include "io/metrics/choices_file.hpp"
#include "io/metrics/console.hpp"
#include "io/metrics/run_directory.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

template <class Count>
std::int64_t total(const std::vector<CutCorpus>& corpora, const Count& count) {
  return std::transform_reduce(corpora.begin(), corpora.end(), std::int64_t{0}, std::plus<>(), count);
}

/// Notes the tokenizer beside a token file, with which it was made, and adds a problem if it differs from the deck's.
void note_tokenizer(Prepared& run, const std::filesystem::path& file, Problems& problems) {
  const std::filesystem::path beside = file.parent_path() / tokenizer_file;
  std::error_code absent;
  if (run.deck.config.data.kind == DataKind::text || !std::filesystem::exists(beside, absent)) return;
  if (run.made_with.empty()) run.made_with = beside;
  if (run.tokenizer && read_text_file(beside) != run.tokenizer->text())
    problems.add(Exit::file, run.deck.provenance.located(
                                 {{"data.tokenizer"}, fmt::format("is not the one that {} was made with, {}",
                                                                  file.string(), beside.string())}));
}

/// Adds the problems that `work` finds with a corpus, with the place of its key and the corpus's name.
template <class Work>
void examine_corpus(const Prepared& run, const char* key, const std::string& name, Problems& problems,
                    const Work& work) {
  Problems found;
  attempt(found, [&] { work(found); });
  for (const Problem& problem : found.list())
    problems.add(problem.code, run.deck.provenance.located({{key}, (name.empty() ? "" : name + ": ") + problem.text}));
}

/// Adds a problem for each of the first files that are no text, and one for the number of all others.
void refuse_no_text(const Prepared& run, const char* key, const std::vector<std::filesystem::path>& files,
                    Problems& problems) {
  constexpr int most = 8;
  int refused = 0;
  for (const std::filesystem::path& file : files)
    examine_corpus(run, key, "", problems, [&](Problems& found) {
      const std::string why = why_no_text(file, MappedFile(file).bytes());
      if (!why.empty() && ++refused <= most) found.add(Exit::file, file.string() + ": " + why);
    });
  if (refused > most)
    problems.add(Exit::file, run.deck.provenance.located(
                                 {{key}, fmt::format("{} more files are no text", refused - most)}));
}

/// Opens the corpus of some of the deck's patterns and cuts it by `cut`; empty if there are problems.
template <class Cut>
std::optional<CutCorpus> corpus_of(Prepared& run, const char* key, const std::vector<std::string>& patterns,
                                   const std::string& name, Problems& problems, const Cut& cut) {
  const RunConfig& config = run.deck.config;
  std::vector<Finding> findings;
  auto files = list_files({config.data.root.get(), patterns, config.checkpoint.dir.get(), key}, findings);
  for (const Finding& finding : findings) problems.add(Exit::file, run.deck.provenance.located(finding));
  if (!findings.empty()) return std::nullopt;
  for (const std::filesystem::path& file : files) note_tokenizer(run, file, problems);
  std::optional<CutCorpus> made;
  const bool text = config.data.kind == DataKind::text;
  Problems of_kind;
  if (text) refuse_no_text(run, key, files, of_kind);
  problems.add(of_kind);
  if (!of_kind.empty()) return std::nullopt;
  examine_corpus(run, key, name, problems, [&](Problems& found) {
    Corpus corpus = text ? Corpus::text(std::move(files))
                         : Corpus::token_files(std::move(files), marks_wanted(config.data));
    const std::int64_t vocab = config.model.vocab;
    corpus.check_vocabulary(run.tokenizer ? std::min(vocab, run.tokenizer->vocabulary()) : vocab, found);
    const Windows windows = cut(corpus.tokens().count(), found);
    if (found.empty()) made = CutCorpus{name, std::move(corpus), windows};
  });
  if (made) require_documents(run, *made, problems);
  return made;
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

/// Device and inode: equal for all links to a file.
std::pair<dev_t, ino_t> identity(const std::filesystem::path& file) {
  struct stat found = {};
  return ::stat(file.c_str(), &found) == 0 ? std::pair(found.st_dev, found.st_ino) : std::pair(dev_t{}, ino_t{});
}

/// Adds a problem if a file of `patterns`, which are evaluated on, is trained on too, by whatever link; says where
/// another one has its bytes.
void refuse_shared_files(Prepared& run, const char* key, const std::vector<std::string>& patterns,
                         Problems& problems) {
  const DataConfig& data = run.deck.config.data;
  const auto listed = [&](const std::vector<std::string>& of) {
    std::vector<Finding> told;  // by corpus_of()
    return list_files({data.root.get(), of, run.deck.config.checkpoint.dir.get(), "data.files"}, told);
  };
  std::map<std::pair<dev_t, ino_t>, std::filesystem::path> trained;
  std::multimap<std::uintmax_t, std::filesystem::path> by_size;
  std::error_code unreadable;  // ignored: reading the file reports it
  for (const std::filesystem::path& file : listed(data.files)) {
    trained.emplace(identity(file), file);
    by_size.emplace(std::filesystem::file_size(file, unreadable), file);
  }
  for (const std::filesystem::path& file : listed(patterns)) {
    if (const auto same = trained.find(identity(file)); same != trained.end())
      return problems.add(
          Exit::deck,
          run.deck.provenance.located(
              {{key, "data.files"},
               file.string() + " is trained on too" +
                   (same->second == file ? "" : ", as " + same->second.string() + ", a link to the same file") +
                   ": leave it out of data.files"}));
    const auto [first, last] = by_size.equal_range(std::filesystem::file_size(file, unreadable));
    for (auto one = first; one != last && run.trained_copy.empty(); ++one)
      if (std::ranges::equal(MappedFile(file).bytes(), MappedFile(one->second).bytes()))
        run.trained_copy =
            fmt::format("{} of {} holds what {} holds, which is trained on", file.string(), key,
                        one->second.string());
  }
}

/// The windows of a corpus of data.files, of `tokens` tokens.
Windows windows_to_train(const RunConfig& config, std::int64_t tokens, Problems& problems) {
  const DataConfig& data = config.data;
  const std::int64_t length = config.model.seq_len;
  if (data.eval_fraction > 0.0 && data.eval_windows == EvalWindows::drawn)
    return Windows::apart(tokens, length, data.eval_fraction, data.eval_seed, problems);
  return Windows::split(tokens, length, data.eval_fraction, problems);
}

/// The windows of one that is evaluated on alone.
Windows windows_held(const RunConfig& config, std::int64_t tokens, Problems& problems) {
  const std::int64_t length = config.model.seq_len;
  if (config.data.eval_windows == EvalWindows::tail) return Windows::held(tokens, length, problems);
  return Windows::held(tokens, length, config.data.eval_seed, problems);
}

void read_corpus(Prepared& run, Task task, Problems& problems) {
  const RunConfig& config = run.deck.config;
  const DataConfig& data = config.data;
  read_tokenizer(run, problems);
  const auto read = [&](const std::vector<std::string>& patterns, const std::string& name) {
    auto one = corpus_of(run, "data.files", patterns, name, problems, [&](std::int64_t tokens, Problems& found) {
      return windows_to_train(config, tokens, found);
    });
    if (one) run.corpora.push_back(std::move(*one));
  };
  attempt(problems, [&] {
    if (data.mixture.empty()) return read(data.files, "");
    for (const std::string& pattern : data.files) read({pattern}, pattern);
  });
  const auto hold = [&](const char* key, const std::vector<std::string>& patterns, const std::string& name) {
    attempt(problems, [&] {
      Problems shared;
      refuse_shared_files(run, key, patterns, shared);
      if (task == Task::training) problems.add(shared);
      else if (!shared.empty()) run.trained_copy = shared.list().front().text;  // which an evaluation is allowed
      auto one = corpus_of(run, key, patterns, name, problems, [&](std::int64_t tokens, Problems& found) {
        return windows_held(config, tokens, found);
      });
      if (one) run.held.push_back(std::move(*one));
    });
  };
  if (!data.eval_files.empty()) hold("data.eval_files", data.eval_files, "");
  for (const EvalSet& set : data.eval_sets) hold("data.eval_sets", set.files, set.name);
}

/// Adds a problem if nothing is kept that could be evaluated.
void require_evaluation(const Prepared& run, Problems& problems) {
  if (!problems.empty()) return;
  for (const CutCorpus* set : run.evaluated())
    if (set->windows.evaluation > 0) return;
  const bool mixed = !run.deck.config.data.mixture.empty();
  problems.add(Exit::deck, run.deck.provenance.located({{"data.eval_fraction", "data.kind"},
                                                        fmt::format("keeps no windows to evaluate on; give {}"
                                                                    "data.eval_files",
                                                                    mixed ? "" : "a share above 0, or ")}));
}

/// Share of one corpus in all samples, 0..1.
double share_of(const DataConfig& data, std::size_t which) {
  if (data.mixture.empty()) return 1;
  return data.mixture[which] / std::accumulate(data.mixture.begin(), data.mixture.end(), 0.0);
}

/// Number of epochs of one corpus in `samples` samples of a run.
double epochs(const Prepared& run, std::size_t which, double samples) {
  return samples * share_of(run.deck.config.data, which) / static_cast<double>(run.corpora[which].windows.train);
}

/// Plans the run's first segment, after all others, whose memory is compared with the machine's too.
void resolve_plan(Prepared& run, const Mpi& mpi, Control& control) {
  for (std::size_t i = segments(run.deck.config); i-- > 0;) plan_segment(run, i, mpi, control);
}

/// Checks that a file can be written, without leaving one if the run is refused for other reasons. Checks too that none
/// is there that does not begin as it will. In the run directory, which is checked or made elsewhere, no file is made.
void check_file(const char* key, const std::string& path, const char* beginning, const std::filesystem::path& directory,
                Problems& problems) {
  namespace fs = std::filesystem;
  attempt(problems, [&] { refuse_other_file(key, path, beginning); });
  const auto folder = [](const fs::path& file) { return fs::absolute(file).lexically_normal().parent_path(); };
  if (path.empty() || folder(path) == folder(directory / "file")) return;
  std::error_code absent;
  const bool was_there = fs::exists(path, absent);
  if (!std::ofstream(path, std::ios::app))
    problems.add(
        Exit::environment,
        fmt::format("{}: {} cannot be written: {}; name a file in a folder that is there and writable", key, path,
                    std::strerror(errno)));
  else if (!was_there)
    fs::remove(path, absent);
}

/// Opens what a run that begins takes its weights from, and compares it with the run, if that has a plan. A run that
/// goes on takes its windows from its newest step, if that can be read.
void check_given_weights(Prepared& run, Problems& problems) {
  const CheckpointConfig& checkpoint = run.deck.config.checkpoint;
  std::vector<StepFolder> steps;
  Problems of_folder, unreadable;
  attempt(of_folder, [&] { steps = step_folders(checkpoint.dir.get()); });
  problems.add(of_folder);
  if (!steps.empty() && problems.empty())
    attempt(unreadable, [&] {
      std::string line = keep_windows(run, SavedRun(steps.back().path).deck.config);
      if (!line.empty()) run.told.push_back(std::move(line));
    });
  if (!of_folder.empty() || !steps.empty() || checkpoint.init_from.empty()) return;
  Problems found;
  std::optional<GivenWeights> given;
  attempt(found, [&] { given = open_weights(checkpoint.init_from); });
  for (const Problem& problem : found.list())
    problems.add(problem.code, run.deck.provenance.located({{"checkpoint.init_from"}, problem.text}));
  if (!given || !run.plan) return;
  GivenStart start = start_from(*given, run);
  problems.add(start.problems);
  run.told = std::move(start.told);
  if (!given->told.empty()) run.told.insert(run.told.begin(), given->told);
}

}  // namespace

void check_debug_files(const RunConfig& config, Problems& problems) {
  check_file("debug.trace", config.debug.trace, "{\"step\"", config.checkpoint.dir.get(), problems);
  check_file("debug.profile", config.debug.profile, "{\"displayTimeUnit\"", config.checkpoint.dir.get(), problems);
  check_file("routing.record", config.routing.record, ChoicesFile::beginning, config.checkpoint.dir.get(), problems);
}

void plan_segment(Prepared& run, std::size_t segment, const Mpi& mpi, Control& control) {
  Problems problems;
  run.segment = segment;
  attempt(problems,
          [&] { run.plan.emplace(resolve(config_of(run.deck.config, segment), mpi.size(), mpi.rank())); });
  control.agree(problems);
  const auto hash = static_cast<std::int64_t>(mix64(run.plan->layout.hash() ^ run.plan->schedule.hash()) >> 1);
  if (control.max(hash) != hash)
    problems.add(Exit::internal, "the ranks planned different layouts or schedules: are they the same binary?");
  problems.add(problems_with_memory(mpi, control, *run.plan, run.gpu));
  control.agree(problems);
  const std::int64_t mine = total(run.plan->memory), most = control.max(mine);
  const auto rank = -static_cast<int>(control.max(mine == most ? -mpi.rank() : -mpi.size()));
  run.largest.reset();
  if (mpi.rank() == 0 && rank != 0)
    attempt(problems, [&] { run.largest.emplace(resolve(run.plan->config, mpi.size(), rank)); });
  control.agree(problems);
}

void cut_again(Prepared& run, Problems& problems) {
  const RunConfig& config = run.deck.config;
  for (CutCorpus& one : run.corpora) one.windows = windows_to_train(config, one.corpus.tokens().count(), problems);
  for (CutCorpus& one : run.held) one.windows = windows_held(config, one.corpus.tokens().count(), problems);
}

Deck checked_deck(const std::string& path, const std::vector<Override>& overrides) {
  Problems problems;
  Deck deck = read_deck(path, overrides, problems);
  problems.raise();
  deck.config.run.threads.fill(host_threads(1));
  return deck;
}

void settle_for(RunConfig& config, int ranks, int hosts) {
  config.parallel.sharding_group.settle(ranks / hosts);
  const bool together = ranks / hosts % config.parallel.expert == 0;
  if (config.parallel.expert > 1) config.proof.settle_expert_rows(Runtime::back_end() == "Cuda" && together);
}

Prepared examine(const std::string& deck, const std::vector<Override>& overrides, int ranks) {
  Prepared run;
  run.deck = checked_deck(deck, overrides);
  settle_for(run.deck.config, ranks, 1);
  const RunConfig& config = run.deck.config;
  run.most_evaluated = config.eval.batches * config.batch.global;
  Runtime::plan_for(static_cast<int>(config.run.threads.get()));
  Problems problems;
  const std::vector<Finding> refused = refusals(config, ranks);
  for (const Finding& finding : refused) problems.add(Exit::deck, run.deck.provenance.located(finding));
  read_corpus(run, Task::training, problems);
  require_answers(run, problems);
  Problems of_directory;
  check_run_directory(config.checkpoint.dir.get(), of_directory);
  problems.add(of_directory);
  check_debug_files(config, problems);
  if (refused.empty())
    attempt(problems, [&] {
      for (const Finding& finding : unnamed_tensors(config, ranks))
        problems.add(Exit::deck, run.deck.provenance.located(finding));
      for (std::size_t i = segments(config); i-- > 0;)
        problems.add(problems_with_memory(run.plan.emplace(resolve_largest(config_of(config, i), ranks))));
      if (!of_directory.empty()) return;
      const std::vector<StepFolder> steps = step_folders(config.checkpoint.dir.get());
      problems.add(problems_with_room(*run.plan, steps.empty() ? "" : steps.back().path, -1));
      if (steps.empty()) check_choices_files(run, {}, {}, problems);
    });
  if (of_directory.empty()) check_given_weights(run, problems);
  problems.add(problems_with_threads(config.run.threads.get()));
  problems.raise();
  return run;
}

Batches Prepared::batches() const {
  std::vector<CutTokens> training;
  for (const CutCorpus& one : corpora) training.push_back(cut_tokens(*this, one));
  std::vector<CutTokens> sets;
  for (const CutCorpus* one : evaluated()) {
    sets.push_back(cut_tokens(*this, *one));
    sets.back().windows.evaluation = std::min(sets.back().windows.evaluation, most_evaluated);
  }
  return {deck.config, std::move(training), sets, plan->ranks.world};
}

std::vector<const CutCorpus*> Prepared::evaluated() const {
  std::vector<const CutCorpus*> sets;
  if (deck.config.data.eval_fraction > 0.0 && !corpora.empty()) sets.push_back(&corpora.front());
  for (const CutCorpus& one : held) sets.push_back(&one);
  return sets;
}

std::uint64_t Prepared::corpus_hash() const {
  std::uint64_t hash = corpora.front().corpus.hash();
  for (std::size_t i = 1; i < corpora.size(); ++i) hash = mix64(mix64(hash) ^ corpora[i].corpus.hash());
  return hash;
}

std::int64_t Prepared::files() const {
  return total(corpora, [](const CutCorpus& one) { return one.corpus.files(); });
}
std::int64_t Prepared::tokens() const {
  return total(corpora, [](const CutCorpus& one) { return one.corpus.tokens().count(); });
}

const TextEncoding& Prepared::encoding() const {
  static const ByteEncoding bytes;
  return tokenizer ? static_cast<const TextEncoding&>(*tokenizer) : bytes;
}

std::vector<std::string> mixture_texts(const DataConfig& data) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < data.mixture.size(); ++i)
    texts.push_back(fmt::format("{:.3g}% {}", 100 * share_of(data, i), data.files[i]));
  return texts;
}

std::string corpus_text(const Prepared& run) {
  const RunConfig& config = run.deck.config;
  const CutCorpus& first = run.corpora.front();
  const double samples = static_cast<double>(config.run.steps) * static_cast<double>(config.batch.global);
  std::int64_t evaluation = 0;
  for (const CutCorpus* set : run.evaluated()) evaluation += set->windows.evaluation;
  const std::string held = fmt::format("{}, {}", counted(run.files(), "file"), counted(run.tokens(), "token"));
  const std::string work =
      fmt::format("{} of {}", counted(config.run.steps, "step"), counted(config.batch.global, "sequence"));
  if (config.data.mixture.empty())
    return fmt::format("{}; {} of {} for training, {} for evaluation; {:.2f} epochs in {}", held,
                       counted(first.windows.train, "window"), counted(first.windows.length, "token"), evaluation,
                       epochs(run, 0, samples), work) +
           evaluation_text(run);
  std::vector<std::string> texts = mixture_texts(config.data);
  for (std::size_t i = 0; i < texts.size(); ++i)
    texts[i] +=
        fmt::format(" ({}, {:.2f} epochs)", counted(run.corpora[i].windows.train, "window"), epochs(run, i, samples));
  return fmt::format("{}; windows of {}: {}; {} for evaluation; {}", held, counted(first.windows.length, "token"),
                     fmt::join(texts, ", "), evaluation, work) +
         evaluation_text(run);
}

std::string epochs_text(const Prepared& run, std::int64_t samples) {
  std::string text;
  for (std::size_t i = 0; i < run.corpora.size(); ++i) {
    const CutCorpus& one = run.corpora[i];
    text += fmt::format("{}{:.2f} epochs of {}{}", i > 0 ? ", " : "", epochs(run, i, static_cast<double>(samples)),
                        counted(one.windows.train, "window"), one.name.empty() ? "" : " of " + one.name);
  }
  return text;
}

namespace {

/// Compares the hosts of the ranks: differences are problems, unless the deck allows them. Collective over the world.
void fit_to_each_other(Prepared& run, const Mpi& mpi, Control& control, Problems& problems) {
  HostsFound found = compare_hosts(mpi, control, run.gpu);
  run.told.insert(run.told.end(), found.told.begin(), found.told.end());
  if (run.deck.config.proof.mixed_hosts) {
    run.mixed = std::move(found.differences);
    run.told.insert(run.told.end(), run.mixed.begin(), run.mixed.end());
    return;
  }
  for (const std::string& difference : found.differences) problems.add(Exit::environment, difference);
  if (!found.differences.empty())
    problems.add(Exit::environment, "bits depend on these: make the hosts equal, or set proof.mixed_hosts: true, and "
                                    "the run has bits of its own");
}

/// Compares the decks that the ranks have read; returns whether they are equal. Collective over the world.
bool require_one_deck(const Prepared& run, const Mpi& mpi, Control& control, Problems& problems) {
  const std::vector<std::string> all = control.gather(hex(fnv1a64(resolved_text(run.deck))));
  std::vector<int> others;
  for (int r = 1; r < mpi.size(); ++r)
    if (all[static_cast<std::size_t>(r)] != all.front()) others.push_back(r);
  if (!others.empty())
    problems.add(Exit::deck, fmt::format("{} read another deck than rank 0 on {}: put one file where all hosts see it",
                                         places_text(mpi.hosts(), others), mpi.hosts().front()));
  return others.empty();
}

/// Settles parallel.sharding_group host, which needs as many ranks on each host. Local, and equal on all ranks.
void settle_sharding_group(Prepared& run, const Mpi& mpi, Problems& problems) {
  ShardingGroup& group = run.deck.config.parallel.sharding_group;
  if (!group.is_host()) return;
  if (const std::optional<int> of_host = ranks_of_each_host(mpi.hosts())) return group.settle(*of_host);
  std::vector<int> all;
  for (int r = 0; r < mpi.size(); ++r) all.push_back(r);
  problems.add(Exit::deck,
               run.deck.provenance.located(
                   {{"parallel.sharding_group"},
                    fmt::format("host needs as many ranks on each host, numbered host by host, and there are {}: start "
                                "them so (mpiexec -ppn N, srun --ntasks-per-node=N), or use all, or a number that "
                                "divides {} ranks",
                                places_text(mpi.hosts(), all), mpi.size())}));
}

/// Settles proof.expert_rows auto of one deck for all ranks. Collective over the world.
void settle_expert_rows(Prepared& run, const Mpi& mpi, Control& control) {
  const auto expert = static_cast<int>(run.deck.config.parallel.expert);
  ProofConfig& proof = run.deck.config.proof;
  if (expert == 1 || mpi.size() % expert != 0 || proof.expert_rows != ExpertRows::automatic) return;
  proof.settle_expert_rows(mpi.gpus_reach_each_other(control, run.gpu, expert));
}

/// Settles what depends on the machine, and adds the problems with it and with the number of ranks. Collective over the
/// world.
void fit_to_machine(Prepared& run, Task task, const Mpi& mpi, Control& control, Problems& problems) {
  RunConfig& config = run.deck.config;
  // The fewest of any rank: threads are part of the arithmetic.
  config.run.threads.fill(-control.max(-host_threads(control.max(mpi.local_rank() + 1))));
  Runtime::plan_for(static_cast<int>(config.run.threads.get()));
  run.most_evaluated = config.eval.batches * config.batch.global;
  if (task == Task::evaluation) {
    config.batch.global = round_up(config.batch.global, mpi.size() * config.batch.micro);
    config.debug.trace.clear();  // for training only, like the three keys below
    config.debug.profile.clear();
    config.debug.tensors.step.clear();
    config.checkpoint.async = false;
    config.eval.weights = EvaluatedWeights::trained;  // given weights, whichever they are, and none beside them
    config.optimizer.ema = 0;
  }
  settle_sharding_group(run, mpi, problems);
  for (const Finding& finding : refusals(config, mpi.size()))
    problems.add(Exit::deck, run.deck.provenance.located(finding));
  run.gpu = own_gpu(mpi);
  if (require_one_deck(run, mpi, control, problems)) settle_expert_rows(run, mpi, control);
  fit_to_each_other(run, mpi, control, problems);
  problems.add(problems_with_gpus(mpi, control, config.proof.share_gpu ? Sharing::allowed : Sharing::refused));
  problems.add(problems_with_threads(config.run.threads.get()));
}

}  // namespace

Prepared prepare(const std::string& deck, const std::vector<Override>& overrides, Task task, const Mpi& mpi,
                 Control& control) {
  Prepared run;
  Problems problems;
  attempt(problems, [&] { run.deck = read_deck(deck, overrides, problems); });
  control.agree(problems);
  fit_to_machine(run, task, mpi, control, problems);
  read_corpus(run, task, problems);
  if (task == Task::evaluation) require_evaluation(run, problems);
  require_answers(run, problems);
  control.agree(problems);
  attempt(problems, [&] {
    for (const Finding& finding : unnamed_tensors(run.deck.config, mpi.size()))
      problems.add(Exit::deck, run.deck.provenance.located(finding));
  });
  control.agree(problems);
  resolve_plan(run, mpi, control);
  return run;
}

Prepared prepare_without_corpus(Deck deck, const Mpi& mpi, Control& control) {
  Prepared run;
  Problems problems;
  run.deck = std::move(deck);
  fit_to_machine(run, Task::evaluation, mpi, control, problems);
  control.agree(problems);
  resolve_plan(run, mpi, control);
  return run;
}

}  // namespace tessera
