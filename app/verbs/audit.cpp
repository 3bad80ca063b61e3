#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/cli/build.hpp"
#include "app/cli/ranks.hpp"
#include "app/training/loop/training.hpp"
#include "app/training/start/changes.hpp"
#include "app/training/start/choices_files.hpp"
#include "app/training/start/library_plans.hpp"
#include "app/training/start/preparation.hpp"
#include "app/training/start/settle_units.hpp"
#include "app/verbs/audited_parts.hpp"
#include "app/verbs/verbs.hpp"
#include "core/comm/make_on_all.hpp"
#include "core/config/recipe_schedule.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/files/json_text.hpp"
#include "io/metrics/console.hpp"
#include "io/metrics/metrics_log.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// Digests of a state's tensors, as a checkpoint records them. Collective over the world.
std::vector<std::uint64_t> digests_of(const StateDict& state, Device& device, Control& control) {
  Stream& stream = device.compute();
  clear(stream, state.digests);
  for (std::size_t i = 0; i < state.tensors.size(); ++i)
    for (const StateRange& range : state.tensors[i].ranges)
      digest(stream, state.digests.as<std::uint64_t>() + i, range.values, static_cast<std::uint64_t>(range.first));
  std::vector<std::uint64_t> digests(state.tensors.size());
  device.download(stream, digests.data(), state.digests.flat(0, std::ssize(digests)));
  control.sum(digests.data(), static_cast<int>(digests.size()));
  return digests;
}

/// In what a state differs from the checkpoint of its step, as one phrase; empty: in nothing.
std::string difference(const StateDict& state, const std::vector<std::uint64_t>& digests, const Checkpoint& kept) {
  std::map<std::string, std::uint64_t> stored;
  for (const StoredTensor& tensor : kept.tensors()) stored[tensor.path()] = tensor.digest;
  std::string first;
  std::int64_t others = 0;
  for (std::size_t i = 0; i < digests.size(); ++i) {
    const auto found = stored.find(state.tensors[i].path());
    if (found != stored.end() && found->second == digests[i]) continue;
    if (first.empty())
      first = state.tensors[i].path();
    else
      ++others;
  }
  if (!first.empty()) return others == 0 ? first : fmt::format("{} and {}", first, counted(others, "more tensor"));
  StateCounters made = state.counters, saved = kept.manifest().counters;
  if (saved.chain == 0) made.chain = 0;  // saved by a program that kept none
  if (made.chain != saved.chain) return "the chain of its steps, though every tensor is equal";
  return made == saved ? "" : "its counters, though every tensor is equal";
}

/// Compares the steps that are made again with the run's log, on rank 0.
class LogComparison {
 public:
  explicit LogComparison(const fs::path& run) {
    std::error_code unknown;
    if (!fs::exists(run / metrics_file, unknown)) return;
    for (const MetricsRow& row : read_metrics(run / metrics_file)) rows_[row.step] = row;
  }
  void see(const MetricsRow& row) {
    const auto kept = rows_.find(row.step);
    if (!first_.empty() || kept == rows_.end()) return;
    const auto compare = [&](const char* what, float before, float now) {
      if (before != now && !(before != before && now != now))
        first_ = fmt::format("{} of step {}: {} then, {} now", what, row.step, before, now);
    };
    compare("the gradient norm", kept->second.grad_norm, row.grad_norm);
    compare("the loss", kept->second.loss, row.loss);
  }
  const std::string& first() const { return first_; }  ///< the first difference; empty: none

 private:
  std::map<std::int64_t, MetricsRow> rows_;
  std::string first_;
};

/// What an audit found so far.
struct Findings {
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  bool equal = true;
};

/// What is said on rank 0.
void tell(const AuditOptions& options, const std::string& text) {
  if (options.format == Format::json) return;
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

/// Makes the steps again, and compares at each checkpoint, up to the first that differs. Collective over the world.
void compare_steps(const AuditOptions& options, const std::vector<StepFolder>& checkpoints, Training& training,
                   Findings& findings, Device& device, Control& control) {
  LogComparison log(options.run);
  const auto at_boundary = [&](std::int64_t step) {
    const auto here = std::ranges::find(checkpoints, step, &StepFolder::step);
    if (here == checkpoints.begin() || here == checkpoints.end()) return Proceed::go_on;
    const StateDict state = training.state();
    const Checkpoint kept(here->path, control);
    const std::string found = difference(state, digests_of(state, device, control), kept);
    findings.equal = found.empty();
    const std::string& digest = kept.manifest().content_digest;
    findings.steps.push_back({{"step", step}, {"equal", findings.equal}, {"content_digest", digest}});
    if (!findings.equal) findings.steps.back()["difference"] = found;
    if (!log.first().empty()) findings.steps.back()["log"] = log.first();
    const std::string before = log.first().empty() ? "" : "; first in " + log.first();
    if (control.rank() == 0)
      tell(options, findings.equal ? fmt::format("step {}: equal | {}", step, digest)
                                   : fmt::format("step {}: differs in {}{}", step, found, before));
    return findings.equal && step != checkpoints.back().step ? Proceed::go_on : Proceed::stop;
  };
  training.begin([&](const MetricsRow& row) { return log.see(row), Problems(); });
  while (at_boundary(training.step()) == Proceed::go_on && !training.done()) {
    training.make_step();
    training.end_step();
  }
  training.finish();
}

/// The keys of an audit's deck that others take the place of: an audit writes nothing, and makes steps alone.
std::vector<Override> with_idle_keys(std::vector<Override> overrides) {
  for (const char* idle : {"debug.trace", "debug.profile", "routing.record"}) overrides.push_back({idle, ""});
  overrides.push_back({"debug.tensors.step", "[]"});
  for (const char* idle : {"eval.every_steps", "precision.statistics_every"}) overrides.push_back({idle, "0"});
  return overrides;
}

/// Says what may keep bits from being equal without a fault: another program, or sums that depend on the ranks.
void warn(const Prepared& run, const Checkpoint& last, const std::vector<StepFolder>& checkpoints, int ranks) {
  if (const std::string other = difference_text(this_build(), last.git_sha(), last.libraries()); !other.empty())
    fmt::print(stderr, "built differently than the program that saved step {}: {}\n", last.manifest().counters.step,
               other);
  const RunConfig& config = run.deck.config;
  std::set<std::int64_t> others;  // each number of ranks once
  for (auto one = checkpoints.begin() + 1; one != checkpoints.end(); ++one)
    if (const std::int64_t were = SavedRun(one->path).manifest.world_size;
        sum_order(config, were) != sum_order(config, ranks) && others.insert(were).second)
      fmt::print(stderr, "reduce.order is {}: bits depend on the number of ranks, which was {} and is {}\n",
                 name_of(config.reduce.order), were, ranks);
}

/// Prepares a part with the deck that made its steps, and plans the segment of precision.schedule that they are of.
/// Collective over the world.
Prepared prepared_part(const AuditOptions& options, const AuditedPart& part, const Checkpoint& last, const Mpi& mpi,
                       Control& control) {
  const std::string deck = (last.folder() / deck_file).string();
  Prepared run = prepare(deck, with_idle_keys(options.overrides), Task::training, mpi, control);
  if (last.manifest().corpus_hash != hex(run.corpus_hash()))
    throw Error(Exit::file, fmt::format("{}: was trained on other files than those that {} finds: --set data.root=...",
                                        last.folder().string(), deck));
  const RunConfig& config = run.deck.config;
  if (part.checkpoints.front().step == 0 && !config.checkpoint.init_from.empty())
    throw Error(Exit::usage, "--from 0: the run began with the weights of checkpoint.init_from: begin with a step");
  const std::size_t segment = segment_of(config, part.checkpoints.front().step + 1);
  if (segment != run.segment) plan_segment(run, segment, mpi, control);
  return run;
}

/// Makes the steps of a part again as they were made. Adds what it finds. Collective over the world.
void audit_part(const AuditOptions& options, const AuditedPart& part, std::optional<Runtime>& runtime,
                Findings& findings, Mpi& mpi, Control& control) {
  const std::vector<StepFolder>& checkpoints = part.checkpoints;
  const Checkpoint last(checkpoints.back().path, control);
  Prepared run = prepared_part(options, part, last, mpi, control);
  const RunConfig& config = run.deck.config;
  const std::chrono::seconds patience = config.comm.timeout();
  control.wait_at_most(patience);
  if (mpi.rank() == 0) warn(run, last, checkpoints, mpi.size());
  if (mpi.rank() == 0 && !part.changed.empty())
    tell(options, fmt::format("changed after step {}: {}", checkpoints.front().step, part.changed));
  if (!runtime) runtime.emplace(static_cast<int>(config.run.threads.get()), run.gpu);
  settle_units(run, mpi, control);
  Device device;
  use_library_plans(device, *run.plan, {last.folder()}, control);
  Mesh mesh = mpi.mesh(device, run.plan->ranks, patience, {.copy_engines = config.proof.copy_engines});
  std::vector<Record> no_records;
  const auto training = make_on_all<Training>(control, device, *run.plan, run.batches(), mesh, control, no_records);
  or_end_all_ranks(mpi, [&] {
    if (checkpoints.front().step > 0) {
      const Checkpoint first(checkpoints.front().path, control);
      training->restore([&](StateDict& state) { load(first, state, device, control); });
    }
    RunRequest request;
    request.stop_at = checkpoints.back().step;
    open_choices_files(run, request, *training, control);  // mutation: audits_follow_no_record
    compare_steps(options, checkpoints, *training, findings, device, control);
    return 0;
  });
}

int audit(const AuditOptions& options, Mpi& mpi, Control& control) {
  Problems problems;
  if (const std::string mistake = mpi.launch_mistake(); !mistake.empty()) problems.add(Exit::environment, mistake);
  control.agree(problems);
  const std::vector<AuditedPart> parts = audited_parts(options, control);
  std::optional<Runtime> runtime;
  Findings findings;
  for (auto part = parts.begin(); part != parts.end() && findings.equal; ++part)
    audit_part(options, *part, runtime, findings, mpi, control);
  if (mpi.rank() != 0) return findings.equal ? 0 : 1;
  const nlohmann::ordered_json json = {{"equal", findings.equal}, {"ranks", mpi.size()}, {"steps", findings.steps}};
  if (options.format == Format::json) fmt::print("{}\n", json_text(json, 2));
  tell(options, fmt::format("{}: steps {} to {} computed again on {}", findings.equal ? "equal" : "different",
                            parts.front().checkpoints.front().step + 1, parts.back().checkpoints.back().step,
                            counted(mpi.size(), "rank")));
  return findings.equal ? 0 : 1;
}

}  // namespace

int run_audit(const AuditOptions& options) {
  return on_all_ranks([&](Mpi& mpi, Control& control) { return audit(options, mpi, control); });
}

}  // namespace tessera
