#include "app/training/beginning.hpp"

#include <cstdio>

#include <fmt/format.h>

#include "app/cli/build.hpp"
#include "app/training/saving.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/files/nonce.hpp"

namespace tessera {

Beginning begin_run(const PreparedRun& run, const RunRequest& request, const Mpi& mpi, Control& control,
                    Training& training, Device& device) {
  Beginning beginning;
  Origin& origin = beginning.origin;
  const RunConfig& config = run.deck.config;
  origin.run_id = control.broadcast(nonce() + nonce());
  if (!run.beginnings.empty()) {
    const Parent parent =
        resume_from(run.beginnings, config.checkpoint.dir.get(), training, device, control, run.parallel.get());
    beginning.step = parent.manifest.counters.step;
    beginning.kept = parent.kept;
    origin.run_id = parent.manifest.run_id;
    origin.changes = parent.changes;
    for (const KeyChange& change : run.changes)
      origin.changes += fmt::format("step {}: {}: {} -> {}\n", beginning.step, change.key, change.before, change.now);
    origin.parent = parent.folder.string();
    origin.parent_digest = parent.manifest.content_digest;
    if (mpi.rank() == 0)
      fmt::print("resumed from {} | {}\n{}", origin.parent, origin.parent_digest, run.changes_text);
  }
  if (run.given) {
    const GivenWeights& given = *run.given;
    training.initialise([&](StateDict& weights) { load_weights(*given.source, weights, device, control); });
    origin.parent = given.path.string();
    origin.parent_digest = given.content_digest;
    const std::string digest = given.content_digest.empty() ? "" : " | " + given.content_digest;
    if (mpi.rank() == 0) fmt::print("starts with the weights of {}{}\n", origin.parent, digest);
  }
  const Build build = this_build();
  origin.version = build.version;
  origin.git_sha = build.git_sha;
  origin.libraries = libraries_text(build);
  origin.mesh = fmt::format("data {}", mpi.size());
  if (config.parallel.expert > 1) origin.mesh += fmt::format(", expert {}", config.parallel.expert);
  origin.steps = config.run.steps;
  origin.optimizer = config.optimizer;
  origin.deck = resolved_text(run.deck);
  if (run.tokenizer) origin.tokenizer = run.tokenizer->text();
  origin.model_sha256 = model_fingerprint(config.model);
  origin.corpus_hash = run.corpus_hash();
  origin.world_size = mpi.size();
  const ExpertLayout layout = config.checkpoint.expert_layout;
  const ExpertWeights held = config.model.moe ? config.model.moe->weights : ExpertWeights::single;
  origin.experts = layout == ExpertLayout::as_in_memory ? held
                   : layout == ExpertLayout::single     ? ExpertWeights::single
                                                        : ExpertWeights::discrete;
  origin.command_line = fmt::format("{}", fmt::join(request.command_line, " "));
  origin.hosts = control.broadcast(fmt::format("{}", fmt::join(control.gather(mpi.host()), " ")));
  return beginning;
}

}  // namespace tessera
