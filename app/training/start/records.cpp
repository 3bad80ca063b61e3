#include "app/training/start/records.hpp"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "app/cli/build.hpp"
#include "app/training/start/evaluated.hpp"
#include "app/training/tell/plan_text.hpp"
#include "io/checkpoint/branch.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/files/access.hpp"
#include "io/files/text_file.hpp"
#include "io/metrics/routing_log.hpp"
#include "io/metrics/routing_probe.hpp"
#include "io/metrics/run_directory.hpp"
#include "io/metrics/run_record.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

/// Host and device of every rank, on every rank. Collective over the world.
std::vector<RankPlace> places(const PreparedRun& run, const Mpi& mpi, Control& control) {
  const std::vector<std::string> hosts = control.gather(mpi.host()), gpus = control.gather(std::to_string(run.gpu)),
                                 names = control.gather(Runtime::gpu().name);
  std::vector<RankPlace> all;
  for (std::size_t r = 0; r < hosts.size(); ++r) all.push_back({hosts[r], std::stoi(gpus[r]), names[r]});
  return all;
}

RunRecord record_of(const PreparedRun& run, const RunRequest& request) {
  const RunConfig& config = run.deck.config;
  const Build build = this_build();
  RunRecord record;
  record.name = config.run.name;
  record.command_line = request.command_line;
  record.deck_path = request.deck;
  record.deck_hash = hex(run.deck.text_hash);
  record.resolved_deck_hash = hex(fnv1a64(resolved_text(run.deck)));
  record.version = build.version;
  record.git_sha = build.git_sha;
  record.compiler = build.compiler;
  record.back_end = build.back_end;
  record.mpi = build.mpi;
  for (const Library& library : build.libraries) record.libraries[library.name] = library.version;
  record.threads_per_rank = config.run.threads;
  record.environment = allowed_environment();
  record.recipe = recipe_text(config.precision);
  record.seed = config.run.seed;
  record.data_hash = run.corpus_hash();
  record.data_files = run.files();
  record.data_tokens = run.tokens();
  record.started = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  return record;
}

/// The evaluation sets that have names.
std::vector<LoggedSet> logged_sets(const PreparedRun& run) {
  std::vector<LoggedSet> sets;
  const std::vector<const CutCorpus*> corpora = run.evaluated();
  const std::vector<Evaluated> all = evaluated_by(run);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!all[i].name.empty())
      sets.push_back({all[i].name, extent_text(all[i]), all[i].tokens, target_bytes(run, *corpora[i])});
  return sets;
}

/// The files of rows that go with a run's checkpoints.
const std::vector<std::string>& row_files() {
  static const std::vector<std::string> all = {metrics_file, routing_file, routing_probe_file, quantization_file};
  return all;
}

/// Sets the rows of a run aside whose checkpoints are gone, since one that begins anew would write over them. Local.
void keep_rows_of_lost_steps(const std::filesystem::path& directory) {
  const std::vector<std::string> aside = leave_lost_line(directory, row_files());
  if (!aside.empty())
    fmt::print("{}: its checkpoints are gone, so the run begins anew; rows of the run before are set aside: {}\n",
               directory.string(), fmt::join(aside, ", "));
}

/// Begins a branch. From now on the run directory holds the steps of two lines, until the new line's first checkpoint
/// sets the old line's later ones aside. Local.
void branch_off(const std::filesystem::path& directory, const Beginning& beginning) {
  const std::vector<std::string> left =
      begin_branch(directory, beginning.origin.parent, beginning.kept, row_files());
  if (!left.empty())
    fmt::print("a branch begins after step {}: its first checkpoint sets {} aside\n", beginning.step,
               fmt::join(left, ", "));
}

/// Text of run.json with this start and the earlier ones.
std::string record_text(const RunRecord& record, const std::filesystem::path& path) {
  std::error_code unknown;
  if (!exists(path, unknown)) return to_json(record, "");
  try {
    return to_json(record, read_text_file(path));
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}; the starts before this one are not listed\n", path.string(), error.what());
    return to_json(record, "");
  }
}

}  // namespace

std::unique_ptr<RunLog> open_records(const PreparedRun& run, const RunRequest& request, const AgreedPlans& plans,
                                     const Beginning& beginning, const Mpi& mpi, Control& control) {
  std::unique_ptr<RunLog> log;
  RunRecord record = record_of(run, request);
  record.library_plans = plans;
  for (const auto& [kind, checked] : run.units)
    record.units.push_back(
        {text_of(kind), checked.fault.empty() ? "native" : "decoded", checked.apart, checked.fault});
  record.mixed_hosts = run.mixed;
  record.ranks = places(run, mpi, control);
  record.step = beginning.step;
  for (const KeyChange& change : beginning.changes) record.changes.push_back({change.key, change.before, change.now});
  if (!run.beginnings.empty()) record.resumed_from = beginning.origin.parent;
  const RunConfig& config = run.deck.config;
  const std::filesystem::path directory = config.checkpoint.dir.get();
  Problems problems;
  if (mpi.rank() == 0)
    attempt(problems, [&] {
      if (std::holds_alternative<FromCheckpoint>(request.resume)) branch_off(directory, beginning);
      if (beginning.kept < 0) keep_rows_of_lost_steps(directory);
      log = std::make_unique<RunLog>(run.told_plan(), beginning.step, peak_of_run(config),
                                     RunTexts{corpus_text(run), resolved_text(run.deck), mpi.host(), run.mixed,
                                              logged_sets(run)});
      record.restart = log->restarts();
      record.reached = log->reached();
      replace_text_file(directory / "deck.resolved.yaml", resolved_text(run.deck));
      if (run.tokenizer) replace_text_file(directory / tokenizer_file, run.tokenizer->text());
      replace_text_file(directory / plan_file, plan_text(run.told_plan()));
      replace_text_file(directory / record_file, record_text(record, directory / record_file));
    });
  control.agree(problems);
  return log;
}

std::optional<MetricsRow> row_to_complete(const RunConfig& config, const Training& training, std::int64_t kept,
                                          Control& control) {
  const std::filesystem::path path = std::filesystem::path(config.checkpoint.dir.get()) / metrics_file;
  std::optional<MetricsRow> found;
  Problems problems;
  if (control.rank() == 0 && kept > 0 && evaluation_due(config, kept) && training.evaluates())
    attempt(problems, [&] {
      if (entry_at(path) == Entry::none) return;
      const std::vector<MetricsRow> rows = read_metrics(path);
      const auto row = std::ranges::find(rows.rbegin(), rows.rend(), kept, &MetricsRow::step);
      if (row != rows.rend() && !row->eval_loss) found = *row;
    });
  control.agree(problems);
  return found;
}

}  // namespace tessera
