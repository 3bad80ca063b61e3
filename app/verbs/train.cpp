#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "app/cli/ranks.hpp"
#include "app/training/advice.hpp"
#include "app/training/beginning.hpp"
#include "app/training/generation.hpp"
#include "app/training/library_plans.hpp"
#include "app/training/prepared_run.hpp"
#include "app/training/records.hpp"
#include "app/training/report.hpp"
#include "app/training/saving.hpp"
#include "app/training/stop.hpp"
#include "app/training/summary.hpp"
#include "app/training/training.hpp"
#include "app/verbs/verbs.hpp"
#include "core/comm/make_on_all.hpp"
#include "io/data/utf8.hpp"
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

/// Prints the first lines of the log; rank 0.
void describe(const PreparedRun& run) {
  print_advice(run.deck);
  const RunConfig& config = run.deck.config;
  fmt::print("run:      {}, {}, {} of {}\n", config.run.name, counted(config.run.steps, "step"),
             counted(run.plan->ranks.world.size, "rank"), counted(config.run.threads.get(), "thread"));
  fmt::print("{}corpus:   {}\n", summary_text(*run.plan), corpus_text(run));
  if (const std::string slow = slow_products_text(config.precision.compute); !slow.empty())
    fmt::print("speed:    {}\n", slow);
  fmt::print("records:  {}: checkpoints, metrics.jsonl, report.html, run.json, deck.resolved.yaml (every value), {} "
             "(groups, collectives)\n",
             config.checkpoint.dir.get(), plan_file);
  std::fflush(stdout);
}

/// Generates and prints a sample, unless it was abandoned because the run is `pressed`; returns whether it is whole.
/// All ranks generate, rank 0 prints. Collective over the world.
bool print_sample(Training& training, const RunPlan& plan, const TextEncoding& encoding, const Pressed& pressed) {
  const SampleConfig& sample = plan.config.sample;
  bool abandoned = sample.tokens > 0 && pressed();
  if (sample.tokens == 0 || abandoned) return !abandoned;
  const auto show = [&](const std::string& text) {
    if (plan.ranks.world.rank != 0) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  const NextLogits next = [&](const std::vector<std::int32_t>& ids) { return training.next_logits(ids); };
  show("sample: " + sample.prompt);
  Characters characters(Controls::replaced);
  generate(next, {.seed = plan.seed}, encoding.encode(sample.prompt), sample.tokens, [&](std::int32_t token) {
    show(characters.take(encoding.bytes_of(token)));
    return token != encoding.end_of_text() && !(abandoned = pressed());
  });
  show(characters.rest() + "\n");
  return !abandoned;
}

/// Whether a sample follows a step other than the last.
bool sample_due(const RunConfig& config, std::int64_t step) {
  const std::int64_t every = config.sample.every_steps;
  return every > 0 && step > 0 && step % every == 0 && step < config.run.steps;
}

/// Makes the evaluation of the step done last if the start before has abandoned it for a stop, and completes its row;
/// false if this one was abandoned too. Collective over the world.
bool made_up_for(Training& training, Control& control, const Pressed& pressed, const std::optional<MetricsRow>& row,
                 RunLog* log) {
  if (control.max(row ? 1 : 0) == 0) return true;
  const std::optional<double> loss = training.evaluate(pressed);
  Problems problems;
  if (loss && row)
    attempt(problems, [&] {
      MetricsRow whole = *row;
      whole.eval_loss = static_cast<float>(*loss);
      log->evaluated(whole);
    });
  control.agree(problems);
  return loss.has_value();
}

/// Trains until the last step or an early end, with samples, saves and, on rank 0, the log. A stop comes before a
/// sample that is due, so that the start which goes on from there prints it. Collective over the world.
Proceed all_steps(const RunConfig& config, Training& training, const std::function<bool()>& sample, Saving& saving,
                  const Pressed& pressed, RunLog* log) {
  const auto save = [&](std::int64_t step) {
    const std::int64_t before = saving.saved();
    const Proceed next = saving(step);
    if (log && saving.saved() != before) log->saved(saving.saved());
    return next;
  };
  const auto at_boundary = [&](std::int64_t step) {
    const Proceed next = save(step);
    const bool abandoned = next == Proceed::go_on && sample_due(config, step) && !sample();
    return abandoned ? save(step) : next;
  };
  const auto keep = [&](const MetricsRow& row) { return log ? log->row(saving.timed(row)) : Problems(); };
  training.send_statistics_to([&](std::int64_t step, const std::vector<QuantizerLine>& lines) {
    return log ? log->quantized(step, lines) : Problems();
  });
  return training.run(keep, at_boundary, pressed);
}

/// Why a run stopped early.
std::string stopped_text(std::int64_t step, std::int64_t steps, const Stop& stop) {
  return fmt::format("stopped after step {} of {} ({})", step, steps, stop.cause());
}
/// Text on how to continue a stopped run. `saved`: the newest step in the run directory; `before`: the same when the
/// run began.
std::string ways_on(const TrainOptions& options, const Stop& stop, std::int64_t saved, std::int64_t before) {
  std::vector<std::string> without;  // options to leave out: they would lose saved steps, or stop the run at once
  if (options.resume.from != "auto" && saved != before) without.push_back("--resume " + options.resume.from);
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

/// Runs a training from its beginning or checkpoint to the closing report. Collective over the world.
int train(const TrainOptions& options, Stop& stop, Mpi& mpi, const Running& running) {
  const auto& [run, device, mesh, control, training, plans] = running;
  const RunConfig& config = run.deck.config;
  Beginning beginning = begin_run(run, options, mpi, control, training, device);
  const std::optional<MetricsRow> unfinished = row_to_complete(config, training, beginning.kept, control);
  if (beginning.kept >= config.run.steps && control.max(unfinished ? 1 : 0) == 0) {
    if (mpi.rank() == 0) fmt::print("{} of {} steps done, nothing to do\n", beginning.kept, config.run.steps);
    return 0;
  }
  beginning.origin.library_plans = to_text(plans.plans);
  const std::unique_ptr<RunLog> log = open_records(run, options, plans, beginning, mpi, control);
  Saving saving(device, config, control, training, stop, *run.lock, run.parallel.get(), std::move(beginning.origin),
                beginning.kept);
  const auto close = [&](const std::string& end) {
    const ClosingReport closing = closing_report(device, mesh, *run.plan, control,
                                                 {log ? log->seconds() : 1, training.late_allocations(),
                                                  saving.snapshot_bytes()});
    if (log && run.lock->held()) log->close(closing, end);
  };
  const Pressed pressed = [&] { return saving.pressed(); };
  const auto sample = [&] { return print_sample(training, *run.plan, run.encoding(), pressed); };
  Proceed proceed = Proceed::go_on;
  try {
    if (!made_up_for(training, control, pressed, unfinished, log.get())) proceed = Proceed::stop;
    if (const Proceed end = all_steps(config, training, sample, saving, pressed, log.get()); end == Proceed::stop)
      proceed = end;
  } catch (const Error& error) {
    if (agreed(error)) close(error.what());
    throw;
  }
  const std::string stopped = stopped_text(training.step(), config.run.steps, stop);
  saving.warn_waits();
  close(proceed == Proceed::stop ? stopped : "all steps done");
  if (proceed == Proceed::stop) {
    if (mpi.rank() == 0) fmt::print("{}; {}\n", stopped, ways_on(options, stop, saving.saved(), beginning.kept));
    return static_cast<int>(Exit::stopped);
  }
  sample();
  return 0;
}

int train(const TrainOptions& options, Stop& stop, Mpi& mpi, Control& control) {
  Problems problems;
  attempt(problems, [&] {
    stop.limit({options.stop_at < 0 ? std::nullopt : std::optional(options.stop_at), seconds_of(options.time_limit)});
    fault::arm(mpi.rank());
  });
  if (const std::string mistake = mpi.launch_mistake(); !mistake.empty()) problems.add(Exit::environment, mistake);
  control.agree(problems);
  const PreparedRun run = prepare(options, mpi, control);
  const RunConfig& config = run.deck.config;
  const std::chrono::seconds patience(config.comm.timeout_s);
  control.wait_at_most(patience);
  const Runtime runtime(static_cast<int>(config.run.threads.get()), run.gpu);
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
  return or_end_all_ranks(mpi,
                          [&] { return train(options, stop, mpi, {run, device, mesh, control, *training, plans}); });
}

}  // namespace

int run_train(const TrainOptions& options) {
  Stop stop;
  const int code = on_all_ranks([&](Mpi& mpi, Control& control) { return train(options, stop, mpi, control); });
  stop.outlast_ranks();
  return code;
}

}  // namespace tessera
