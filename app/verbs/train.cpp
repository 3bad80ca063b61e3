#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "app/cli/dropped_output.hpp"
#include "app/cli/ranks.hpp"
#include "app/training/loop/best_step.hpp"
#include "app/training/loop/hooks.hpp"
#include "app/training/loop/saving.hpp"
#include "app/training/loop/stop.hpp"
#include "app/training/loop/training.hpp"
#include "app/training/loop/training_loop.hpp"
#include "app/training/start/beginning.hpp"
#include "app/training/start/choices_files.hpp"
#include "app/training/start/library_plans.hpp"
#include "app/training/start/prepared_run.hpp"
#include "app/training/start/records.hpp"
#include "app/training/start/settle_units.hpp"
#include "app/training/tell/advice.hpp"
#include "app/training/tell/hosts_text.hpp"
#include "app/training/tell/report.hpp"
#include "app/training/tell/summary.hpp"
#include "app/verbs/verbs.hpp"
#include "core/comm/make_on_all.hpp"
#include "core/config/recipe_schedule.hpp"
#include "io/files/fault.hpp"
#include "io/metrics/console.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

/// Parses "HH:MM:SS".
std::optional<std::chrono::seconds> seconds_of(const std::string& limit) {
  if (limit.empty()) return std::nullopt;
  std::int64_t hours = 0;
  int minutes = 0, seconds = 0, end = 0;
  const int read = std::sscanf(limit.c_str(), "%ld:%2d:%2d%n", &hours, &minutes, &seconds, &end);
  constexpr std::int64_t longest = 1'000'000;  // hours, so that nanoseconds fit into 64 bits
  const bool sound = read == 3 && static_cast<std::size_t>(end) == limit.size() && hours >= 0 && hours <= longest &&
                     minutes >= 0 && minutes < 60 && seconds >= 0 && seconds < 60;
  if (!sound) throw Error(Exit::usage, "--time-limit " + limit + ": must read HH:MM:SS, as 03:50:00");
  return std::chrono::seconds(hours * 3600 + minutes * 60 + seconds);
}

/// Prints the first lines of a segment's log; rank 0.
void describe(const PreparedRun& run) {
  const RunConfig& config = run.deck.config;
  fmt::print("run:      {}, {}, {} of {}\n", config.run.name, counted(config.run.steps, "step"),
             counted(run.plan->ranks.world.size, "rank"), counted(config.run.threads.get(), "thread"));
  if (segments(config) > 1) fmt::print("recipes:  {}\n", recipe_text(config.precision));
  const RunPlan& plan = run.told_plan();
  fmt::print("{}{}corpus:   {}\n", summary_text(plan), uneven_text(plan), corpus_text(run));
  if (const std::string slow = slow_products_text(config.precision.compute); !slow.empty())
    fmt::print("speed:    {}\n", slow);
  fmt::print("records:  {}: checkpoints, metrics.jsonl, report.html, run.json, deck.resolved.yaml (every value), {} "
             "(groups, collectives)\n",
             config.checkpoint.dir.get(), plan_file);
  std::fflush(stdout);
}

/// Why a run stopped early.
std::string stopped_text(std::int64_t step, std::int64_t steps, const Stop& stop) {
  return fmt::format("stopped after step {} of {} ({})", step, steps, stop.cause());
}
/// Why run.stop_after ended a run.
std::string ended_text(std::int64_t step, const RunConfig& config, const BestStep& best) {
  return fmt::format("done after step {} of {}: {} in a row without a lower loss than after step {} (run.stop_after)",
                     step, config.run.steps, counted(best.since(), "evaluation"), best.step());
}
/// How a segment has ended.
std::string end_text(Proceed proceed, std::int64_t step, const RunConfig& config, const Stop& stop,
                     const BestStep& best) {
  if (proceed == Proceed::stop) return stopped_text(step, config.run.steps, stop);
  if (proceed == Proceed::change) return fmt::format("the recipe changes after step {}", step);
  return step < config.run.steps ? ended_text(step, config, best) : "all steps done";
}
/// Why a run whose newest step is `kept` (-1: none) has nothing more to do; empty if it has.
std::string done_text(const RunConfig& config, std::int64_t kept, const BestStep& best) {
  if (kept >= config.run.steps) return fmt::format("{} of {} steps done", kept, config.run.steps);
  return kept >= 0 && best.enough(config.run) ? ended_text(kept, config, best) : "";
}
/// Whether a run is `done`, says it then, and has no evaluation to complete either. Collective over the world.
bool nothing_left(const std::string& done, bool unfinished, Control& control) {
  if (done.empty() || control.max(unfinished ? 1 : 0) != 0) return false;
  if (control.rank() == 0) fmt::print("{}, nothing to do\n", done);
  return true;
}
/// Text on how to continue a stopped run. `saved`: the newest step in the run directory; `before`: the same when the
/// run began.
std::string continuation_text(const TrainOptions& options, const Stop& stop, std::int64_t saved, std::int64_t before) {
  std::vector<std::string> without;  // options to leave out: they would lose saved steps, or stop the run at once
  if (!std::holds_alternative<FromNewest>(options.resume) && saved != before)
    without.push_back("--resume " + text_of(options.resume));
  if (stop.cause() == "--stop-at") without.push_back(stop.cause());
  return "the same command goes on" + (without.empty() ? "" : fmt::format(" without {}", fmt::join(without, " and ")));
}

/// Whether all ranks have thrown the same error, so that they can go on together.
bool agreed(const Error& error) { return error.code() != Exit::internal && error.code() != Exit::communication; }

/// The objects of a run with its memory allocated.
struct Running {
  const PreparedRun& run;
  Device& device;
  Mesh& mesh;
  Control& control;
  Training& training;
  const AgreedPlans& plans;
};

/// Makes the closing report, and ends rank 0's `log` (null elsewhere) with it. Collective over the world.
void close_log(const Running& running, RunLog* log, const Saving& saving, const std::string& end) {
  const auto& [run, device, mesh, control, training, plans] = running;
  const ClosingReport closing = closing_report(
      device, mesh, run.told_plan(), control,
      {log ? log->seconds() : 1, training.late_allocations(), saving.snapshot_bytes()});
  if (log && run.lock->held()) log->close(closing, end);
}

/// Where a segment of a run begins.
struct SegmentStart {
  std::optional<std::size_t> segment{};  ///< none: that of the step to resume from
  std::int64_t after = -1;               ///< the step with which the segment before has just ended; -1: none has
};
/// How a segment of a run has ended.
struct SegmentEnd {
  int code = 0;
  std::optional<SegmentStart> next{};  ///< with what the run goes on
};

/// Runs a segment of a training from its beginning or checkpoint to the closing report. `after`: of its SegmentStart.
/// Collective over the world.
SegmentEnd train_prepared(const TrainOptions& options, std::int64_t after, Stop& stop, Mpi& mpi,
                          const Running& running) {
  const auto& [run, device, mesh, control, training, plans] = running;
  const RunConfig& config = run.deck.config;
  Beginning beginning = begin_run(run, options, mpi, control, training, device);
  const std::optional<MetricsRow> unfinished = row_to_complete(config, training, beginning.kept, control);
  const BestStep best = best_step_of(config, training.step(), control);
  // A checkpoint before that which was looked at, since that is damaged, may belong to another segment.
  const std::size_t of_step = segment_of(config, beginning.step);
  const bool fits = of_step == run.segment || beginning.step == after;  // mutation: a_change_trusts_its_checkpoint
  if (!fits) return {.next = SegmentStart{of_step}};
  if (nothing_left(done_text(config, beginning.kept, best), unfinished.has_value(), control)) return {};
  open_choices_files(run, options, training, control);
  beginning.origin.library_plans = to_text(plans.plans);
  const std::unique_ptr<RunLog> log = open_records(run, options, plans, beginning, mpi, control);
  const auto hooks = mpi.rank() == 0 ? std::make_unique<Hooks>(config.run, config.checkpoint.dir.get()) : nullptr;
  Saving saving({.device = device,
                 .config = run.plan->config,
                 .last = last_step_of(config, run.segment),
                 .control = control,
                 .training = training,
                 .stop = stop,
                 .lock = *run.lock,
                 .parallel = run.parallel.get(),
                 .log = log.get(),
                 .hooks = hooks.get()},
                std::move(beginning.origin), beginning.kept, best);
  TrainingLoop loop({.plan = *run.plan,
                     .encoding = run.encoding(),
                     .control = control,
                     .training = training,
                     .saving = saving,
                     .log = log.get(),
                     .sampled = after});
  Proceed proceed = Proceed::go_on;
  try {
    proceed = loop.run(unfinished);
  } catch (const Error& error) {
    if (agreed(error)) {
      close_log(running, log.get(), saving, error.what());
      end_hooks(hooks.get(), config, control, training.step(), error.what(), static_cast<int>(error.code()));
    }
    throw;
  }
  const std::string end = end_text(proceed, training.step(), config, stop, saving.best());
  saving.warn_waits();
  close_log(running, log.get(), saving, end);
  if (proceed == Proceed::change) {
    settle_hooks(hooks.get(), config, control);  // mutation: commands_die_at_a_change
    return {.next = SegmentStart{run.segment + 1, training.step()}};
  }
  const bool stopped = proceed == Proceed::stop;
  const std::string how = stopped ? "; " + continuation_text(options, stop, saving.saved(), beginning.kept) : "";
  if (training.step() < config.run.steps && mpi.rank() == 0) fmt::print("{}{}\n", end, how);
  if (!stopped) loop.sample();
  const int code = stopped ? static_cast<int>(Exit::stopped) : 0;
  end_hooks(hooks.get(), config, control, training.step(), end, code);
  return {code};
}

/// Prepares a segment of a run and trains. The first start makes `runtime`, which later segments use. Collective over
/// the world.
SegmentEnd train_segment(const TrainOptions& options, const SegmentStart& start, std::optional<Runtime>& runtime,
                         Stop& stop, Mpi& mpi, Control& control) {
  PreparedRun run = prepare_run(options, mpi, control, start.segment);
  const RunConfig& config = run.deck.config;
  const std::chrono::seconds patience = config.comm.timeout();
  control.wait_at_most(patience);
  if (!runtime) runtime.emplace(static_cast<int>(config.run.threads.get()), run.gpu);
  settle_units(run, mpi, control);
  if (mpi.rank() == 0 && start.after < 0) print_advice(run.deck);
  if (mpi.rank() == 0) describe(run);
  Device device;
  const AgreedPlans plans = use_library_plans(device, *run.plan, run.beginnings, control);
  std::vector<Record> records;
  // With debug.trace collectives are compared before each, so that a differing one is named before it begins.
  const Compare compare = config.debug.trace.empty() ? Compare::at_boundaries : Compare::before_each;
  const MpiOptions transport{.compare = compare, .copy_engines = config.proof.copy_engines};
  Mesh mesh = mpi.mesh(device, run.plan->ranks, patience, transport);
  if (!config.debug.trace.empty())
    mesh.wrap([&](std::unique_ptr<Communicator> one) { return recording(std::move(one), records); });
  const auto training = make_on_all<Training>(control, device, *run.plan, run.batches(), mesh, control, records);
  SegmentEnd end;
  or_end_all_ranks(mpi, [&] {
    end = train_prepared(options, start.after, stop, mpi, {run, device, mesh, control, *training, plans});
    return end.code;
  });
  return end;
}

/// Trains, one segment of precision.schedule after the other. Collective over the world.
int train(TrainOptions options, Stop& stop, Mpi& mpi, Control& control) {
  Problems problems;
  attempt(problems, [&] {
    stop.limit({options.stop_at < 0 ? std::nullopt : std::optional(options.stop_at), seconds_of(options.time_limit)});
    fault::arm(mpi.rank());
  });
  if (const std::string mistake = mpi.launch_mistake(); !mistake.empty()) problems.add(Exit::environment, mistake);
  control.agree(problems);
  std::optional<Runtime> runtime;
  SegmentEnd end = train_segment(options, {}, runtime, stop, mpi, control);
  while (end.next) {
    if (end.next->after >= 0) options.resume = FromNewest();  // which the segment before has saved
    end = train_segment(options, SegmentStart(*end.next), runtime, stop, mpi, control);
  }
  return end.code;
}

}  // namespace

int run_train(const TrainOptions& options) {
  drop_unwritable_output();
  Stop stop;
  const int code = on_all_ranks([&](Mpi& mpi, Control& control) { return train(options, stop, mpi, control); });
  stop.keep_exit_codes();
  return code;
}

}  // namespace tessera
