#include <chrono>
#include <filesystem>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/cli/build.hpp"
#include "app/cli/ranks.hpp"
#include "app/training/loop/training.hpp"
#include "app/training/start/library_plans.hpp"
#include "app/training/start/preparation.hpp"
#include "app/training/start/settle_units.hpp"
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

/// The checkpoints of an audit, ascending: it begins with the first and compares the others.
std::vector<StepFolder> checkpoints_of(const AuditOptions& options) {
  if (!fs::is_directory(options.run)) throw Error(Exit::file, options.run + ": is no run directory");
  std::vector<StepFolder> chosen;
  std::string steps;
  for (const StepFolder& folder : step_folders(options.run)) {
    if (!why_invalid(folder.path).empty()) continue;
    steps += fmt::format("{}{}", steps.empty() ? "" : ", ", folder.step);
    if (folder.step >= options.from.value_or(0) && folder.step <= options.to.value_or(folder.step))
      chosen.push_back(folder);
  }
  const auto holds = [&](const std::optional<std::int64_t>& step) {
    return !step || std::ranges::find(chosen, *step, &StepFolder::step) != chosen.end();
  };
  const bool fresh = options.from == 0;  // begins with drawn weights, which no checkpoint holds
  if (chosen.size() < (fresh ? 1u : 2u) || !(fresh || holds(options.from)) || !holds(options.to))
    throw Error(Exit::file, fmt::format("{}: {}, and an audit needs two valid steps, or one and --from 0", options.run,
                                        steps.empty() ? "holds none" : "holds " + steps));
  if (fresh && chosen.front().step != 0) chosen.insert(chosen.begin(), StepFolder{0, {}});
  return chosen;
}

/// The same on all ranks. Collective over the world.
std::vector<StepFolder> agreed_checkpoints(const AuditOptions& options, Control& control) {
  std::string text;
  Problems problems;
  if (control.rank() == 0)
    attempt(problems, [&] {
      for (const StepFolder& one : checkpoints_of(options)) text += fmt::format("{} {}\n", one.step, one.path.string());
    });
  control.agree(problems);
  std::istringstream lines(control.broadcast(text));
  std::vector<StepFolder> all;
  for (std::string line; std::getline(lines, line);) {
    const auto space = line.find(' ');
    all.push_back({std::stoll(line.substr(0, space)), line.substr(space + 1)});
  }
  return all;
}

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

/// What an audit found.
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
Findings compare_steps(const AuditOptions& options, const std::vector<StepFolder>& checkpoints, Training& training,
                       Device& device, Control& control) {
  LogComparison log(options.run);
  Findings findings;
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
  return findings;
}

/// Says what may keep bits from being equal without a fault: another program, or sums that depend on the ranks.
void warn(const Prepared& run, const Checkpoint& last, int ranks) {
  if (const std::string other = difference_text(this_build(), last.git_sha(), last.libraries()); !other.empty())
    fmt::print(stderr, "built differently than the program that saved step {}: {}\n", last.manifest().counters.step,
               other);
  if (run.deck.config.reduce.order != ReduceOrder::batch && last.manifest().world_size != ranks)
    fmt::print(stderr, "reduce.order is {}: bits depend on the number of ranks, which was {} and is {}\n",
               name_of(run.deck.config.reduce.order), last.manifest().world_size, ranks);
}

/// Plans the segment of precision.schedule that all audited steps are of. Collective over the world.
void plan_audited(Prepared& run, const std::vector<StepFolder>& checkpoints, const Mpi& mpi, Control& control) {
  const RunConfig& config = run.deck.config;
  const std::size_t first = segment_of(config, checkpoints.front().step + 1);
  const std::int64_t last = last_step_of(config, first);
  if (last < checkpoints.back().step)
    throw Error(Exit::usage, fmt::format("the recipe changes after step {} (precision.schedule): audit up to that step "
                                         "with --to {}, and what follows with --from {}",
                                         last, last, last));
  if (first != run.segment) plan_segment(run, first, mpi, control);
}

int audit(const AuditOptions& options, Mpi& mpi, Control& control) {
  Problems problems;
  if (const std::string mistake = mpi.launch_mistake(); !mistake.empty()) problems.add(Exit::environment, mistake);
  control.agree(problems);
  const std::vector<StepFolder> checkpoints = agreed_checkpoints(options, control);
  std::vector<Override> overrides = options.overrides;
  for (const char* idle : {"debug.trace", "debug.profile"}) overrides.push_back({idle, ""});
  overrides.push_back({"debug.tensors.step", "[]"});
  for (const char* idle : {"eval.every_steps", "precision.statistics_every"}) overrides.push_back({idle, "0"});
  const fs::path deck = checkpoints.back().path / "deck.yaml";
  Prepared run = prepare(deck.string(), overrides, Task::training, mpi, control);
  const RunConfig& config = run.deck.config;
  const std::chrono::seconds patience = config.comm.timeout();
  control.wait_at_most(patience);
  const Checkpoint last(checkpoints.back().path, control);
  if (last.manifest().corpus_hash != hex(run.corpus_hash()))
    throw Error(Exit::file, fmt::format("{}: was trained on other files than those that {} finds: --set data.root=...",
                                        last.folder().string(), deck.string()));
  plan_audited(run, checkpoints, mpi, control);
  if (mpi.rank() == 0) warn(run, last, mpi.size());
  const Runtime runtime(static_cast<int>(config.run.threads.get()), run.gpu);
  settle_units(run, mpi, control);
  Device device;
  use_library_plans(device, *run.plan, {last.folder()}, control);
  Mesh mesh = mpi.mesh(device, run.plan->ranks, patience, {.copy_engines = config.proof.copy_engines});
  std::vector<Record> no_records;
  const auto training = make_on_all<Training>(control, device, *run.plan, run.batches(), mesh, control, no_records);
  return or_end_all_ranks(mpi, [&] {
    if (checkpoints.front().step == 0) {
      if (!config.checkpoint.init_from.empty())
        throw Error(Exit::usage, "--from 0: the run began with the weights of checkpoint.init_from: begin with a step");
    } else {
      const Checkpoint first(checkpoints.front().path, control);
      training->restore([&](StateDict& state) { load(first, state, device, control); });
    }
    const Findings findings = compare_steps(options, checkpoints, *training, device, control);
    const bool equal = findings.equal;
    const nlohmann::ordered_json json = {{"equal", equal}, {"ranks", mpi.size()}, {"steps", findings.steps}};
    if (mpi.rank() == 0 && options.format == Format::json) fmt::print("{}\n", json_text(json, 2));
    if (mpi.rank() == 0)
      tell(options, fmt::format("{}: steps {} to {} computed again on {}", equal ? "equal" : "different",
                                checkpoints.front().step + 1, checkpoints.back().step, counted(mpi.size(), "rank")));
    return equal ? 0 : 1;
  });
}

}  // namespace

int run_audit(const AuditOptions& options) {
  return on_all_ranks([&](Mpi& mpi, Control& control) { return audit(options, mpi, control); });
}

}  // namespace tessera
