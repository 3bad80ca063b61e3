#include "app/training/start/beginning.hpp"

#include <cstdio>

#include <fmt/format.h>

#include "app/cli/build.hpp"
#include "app/training/start/resume.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/files/nonce.hpp"

namespace tessera {

namespace {

/// The changes since the checkpoint that the run resumes from was saved. That may be older than the one that was looked
/// at, if that proved damaged. Throws on all ranks if the run may not make them. Collective over the world.
Changes changes_of(const PreparedRun& run, const RunRequest& request, const std::filesystem::path& checkpoint,
                   Control& control) {
  if (checkpoint == run.beginnings.front()) return run.changes;
  Problems problems;
  Changes changes = changes_against(run, request, checkpoint, problems);
  control.agree(problems);
  return changes;
}

/// Resumes from the run's best checkpoint, and says what differs since. Collective over the world.
void go_on(Beginning& beginning, const PreparedRun& run, const RunRequest& request, const Build& build,
           Control& control, Training& training, Device& device) {
  Origin& origin = beginning.origin;
  const Parent parent =
      resume_from(run.beginnings, run.deck.config.checkpoint.dir.get(), training, device, control, run.parallel.get());
  beginning.step = parent.manifest.counters.step;
  beginning.kept = parent.kept;
  origin.run_id = parent.manifest.run_id;
  origin.changes = parent.changes;
  origin.companions = parent.companions;
  Changes changes = changes_of(run, request, parent.folder, control);
  if (const std::string other = difference_text(build, parent.git_sha, parent.libraries); !other.empty()) {
    changes.text += fmt::format("built differently than step {}: {}; bits may differ from here on\n",
                                beginning.step, other);
    origin.changes += fmt::format("step {}: built differently: {}\n", beginning.step, other);
  }
  beginning.changes = changes.keys;
  for (const KeyChange& change : changes.keys)
    origin.changes += fmt::format("step {}: {}: {} -> {}\n", beginning.step, change.key, change.before, change.now);
  origin.parent = parent.folder.string();
  origin.parent_digest = parent.manifest.content_digest;
  if (control.rank() == 0)
    fmt::print("resumed from {} | {}\n{}", origin.parent, origin.parent_digest, changes.text);
}

}  // namespace

Beginning begin_run(const PreparedRun& run, const RunRequest& request, const Mpi& mpi, Control& control,
                    Training& training, Device& device) {
  Beginning beginning;
  Origin& origin = beginning.origin;
  const Build build = this_build();
  const RunConfig& config = run.deck.config;
  origin.run_id = control.broadcast(nonce() + nonce());
  if (!run.beginnings.empty()) go_on(beginning, run, request, build, control, training, device);
  if (run.given) {
    const GivenWeights& given = *run.given;
    training.initialise([&](StateDict& weights) { load_weights(*given.source, weights, device, control); });
    origin.parent = given.path.string();
    origin.parent_digest = given.content_digest;
    const std::string digest = given.content_digest.empty() ? "" : " | " + given.content_digest;
    if (mpi.rank() == 0) fmt::print("starts with the weights of {}{}\n", origin.parent, digest);
    origin.companions = run.companions;
  }
  for (const std::string& line : run.told)
    if (mpi.rank() == 0) fmt::print("{}\n", line);
  origin.version = build.version;
  origin.git_sha = build.git_sha;
  origin.libraries = libraries_text(build);
  origin.mesh = fmt::format("data {}", mpi.size());
  if (config.parallel.expert > 1) origin.mesh += fmt::format(", expert {}", config.parallel.expert);
  origin.steps = config.run.steps;
  origin.optimizer = config.optimizer;
  origin.deck = resolved_text(run.deck);
  if (run.tokenizer) origin.companions[tokenizer_file] = run.tokenizer->text();
  origin.model_sha256 = model_fingerprint(config.model);
  origin.corpus_hash = run.corpus_hash();
  origin.world_size = mpi.size();
  const ExpertLayout layout = config.checkpoint.expert_layout;
  const ExpertWeights held = config.model.moe ? config.model.moe->weights : ExpertWeights::single;
  origin.experts = layout == ExpertLayout::automatic ? held
                   : layout == ExpertLayout::single     ? ExpertWeights::single
                                                        : ExpertWeights::discrete;
  origin.command_line = fmt::format("{}", fmt::join(request.command_line, " "));
  origin.hosts = fmt::format("{}", fmt::join(control.gather(mpi.host()), " "));
  return beginning;
}

}  // namespace tessera
