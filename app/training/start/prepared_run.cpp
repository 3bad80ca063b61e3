#include "app/training/start/prepared_run.hpp"

#include <fmt/format.h>

#include "app/training/start/choices_files.hpp"
#include "app/training/start/disk_room.hpp"
#include "app/training/start/evaluated.hpp"
#include "app/training/start/known_tokenizer.hpp"
#include "app/training/start/resume.hpp"
#include "app/training/start/shared_folder.hpp"
#include "core/config/recipe_schedule.hpp"
#include "io/checkpoint/branch.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/metrics/run_directory.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

/// Makes the run directory if it is missing, locks it, and cleans up what a killed run left there.
std::unique_ptr<RunLock> claim(const CheckpointConfig& checkpoint, const Mpi& mpi, Control& control) {
  const std::filesystem::path directory = checkpoint.dir.get();
  const WrittenBy by = checkpoint.io == CheckpointIo::mpio ? WrittenBy::mpi_io : WrittenBy::system_calls;
  Problems problems;
  std::error_code unseen;  // ignored: prepare_run_directory() reports what is wrong with the path
  const bool was_there = exists(directory, unseen);
  if (control.rank() == 0) prepare_run_directory(directory, by, problems);
  control.agree(problems);
  problems.add(problems_with_sharing(directory, by, mpi, control));
  if (control.rank() == 0 && !was_there && !problems.empty()) remove(directory, unseen);
  control.agree(problems);
  auto lock = std::make_unique<RunLock>(directory, control);
  if (control.rank() == 0)
    attempt(problems, [&] {
      remove_leftovers(directory);
      settle_branch(directory);
    });
  control.agree(problems);
  return lock;
}

/// Opens the given weights that a run starts from. Collective over the world.
GivenWeights starting_weights(const Deck& deck, Control& control, const hdf5::Parallel* parallel) {
  try {
    return open_weights(deck.config.checkpoint.init_from, control, parallel);
  } catch (const Error& error) {  // the same on every rank
    throw Error(error.code(), deck.provenance.located({{"checkpoint.init_from"}, error.what()}));
  }
}

/// Compares the run's tokenizer with the one that a checkpoint was saved with, if both are known. Another one is a
/// problem unless --allow-change names data.tokenizer, and then a change.
void compare_tokenizers(const PreparedRun& run, const RunRequest& request, const std::filesystem::path& checkpoint,
                        Changes& changes, Problems& problems) {
  const KnownTokenizer theirs{(checkpoint / tokenizer_file).string(), companion_in(checkpoint, tokenizer_file)};
  const KnownTokenizer ours = tokenizer_of(run);
  if (!theirs.json || !ours.json) return;
  std::vector<std::string> told;
  const std::string other = other_tokens(theirs, ours, told);
  for (const std::string& line : told) changes.text += line + "\n";
  if (other.empty()) return;
  constexpr const char* key = "data.tokenizer";
  if (!request.changes.contains(key))
    return problems.add(Exit::file, run.deck.provenance.located(
                                        {{key}, fmt::format("is another tokenizer than {}, with which the weights were "
                                                            "trained: {}: {}",
                                                            theirs.name, other,
                                                            keep_it_text(key, Restart::on_request))}));
  changes.keys.push_back({key, theirs.name, run.deck.config.data.tokenizer, Restart::on_request});
}

/// Where a run goes on that resumes from `checkpoint`; empty: at its beginning.
RunPosition position_of(const std::filesystem::path& checkpoint) {
  if (checkpoint.empty()) return {};
  const StateCounters counters = SavedRun(checkpoint).manifest.counters;
  return {counters.step, counters.next_sample};
}

}  // namespace

Changes changes_against(const PreparedRun& run, const RunRequest& request, const std::filesystem::path& checkpoint,
                        Problems& problems) {
  Changes changes;
  attempt(problems, [&] {
    const SavedRun saved(checkpoint);
    problems.add(problems_with_resuming(saved, run.deck, run.corpus_hash(), request.changes));
    changes.keys = changes_since(saved, {run.deck.config, run.plan->ranks.world.size}, hex(run.corpus_hash()));
    compare_tokenizers(run, request, checkpoint, changes, problems);
    changes.text += changes_text(saved, run.deck.config, changes.keys,
                                 epochs_text(run, saved.manifest.counters.next_sample));
  });
  return changes;
}

PreparedRun prepare_run(const RunRequest& request, const Mpi& mpi, Control& control,
                        std::optional<std::size_t> segment) {
  PreparedRun run{prepare(request.deck, request.overrides, Task::training, mpi, control), {}, {}, {}, {}, {}, {}};
  const RunConfig& config = run.deck.config;
  const std::filesystem::path directory = config.checkpoint.dir.get();
  // Checkpoints are searched for with the lock held. A directory that does not exist has none.
  std::error_code unseen;  // ignored: claim() reports what is wrong with the path
  if (control.max(control.rank() == 0 && exists(directory, unseen))) run.lock = claim(config.checkpoint, mpi, control);
  if (config.checkpoint.io == CheckpointIo::mpio)
    run.parallel = std::make_unique<hdf5::Parallel>(control, config.checkpoint.mpio_hints);
  Problems problems;
  run.beginnings = beginnings(request.resume, config.checkpoint.dir.get(), control);
  std::int64_t step = 0;
  if (!run.beginnings.empty()) {
    attempt(problems, [&] {
      const SavedRun saved(run.beginnings.front());
      step = saved.manifest.counters.step;
      if (std::string line = keep_windows(run, saved.deck.config); !line.empty()) run.told.push_back(std::move(line));
    });
    run.changes = changes_against(run, request, run.beginnings.front(), problems);
  }
  if (run.beginnings.empty() && !config.checkpoint.init_from.empty()) {
    run.given = starting_weights(run.deck, control, run.parallel.get());
    GivenStart start = start_from(*run.given, run);
    problems.add(start.problems);
    run.told.insert(run.told.end(), start.told.begin(), start.told.end());
    run.companions = std::move(start.companions);
  }
  if (const std::size_t begins = segment.value_or(segment_of(config, control.max(step))); begins != run.segment)
    plan_segment(run, begins, mpi, control);
  if (mpi.rank() == 0) {
    check_debug_files(config, problems);
    const std::filesystem::path from = run.beginnings.empty() ? "" : run.beginnings.front();
    attempt(problems, [&] { check_choices_files(run, request, position_of(from), problems); });
    attempt(problems, [&] { problems.add(problems_with_room(*run.plan, from, request.stop_at)); });
  }
  control.agree(problems);
  if (!run.lock) run.lock = claim(config.checkpoint, mpi, control);
  return run;
}

}  // namespace tessera
