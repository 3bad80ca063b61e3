#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <optional>
#include <random>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "app/cli/build.hpp"
#include "app/cli/ranks.hpp"
#include "app/training/generation.hpp"
#include "app/training/given_weights.hpp"
#include "app/training/library_plans.hpp"
#include "app/training/plan_text.hpp"
#include "app/training/preparation.hpp"
#include "app/training/report.hpp"
#include "app/training/run_log.hpp"
#include "app/training/saving.hpp"
#include "app/training/stop.hpp"
#include "app/training/training.hpp"
#include "app/verbs/verbs.hpp"
#include "core/comm/mpi.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/data/utf8.hpp"
#include "io/files/fault.hpp"
#include "io/files/run_lock.hpp"
#include "io/files/text_file.hpp"
#include "io/metrics/run_directory.hpp"
#include "io/metrics/run_record.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

/// Everything about a run that can be found wrong before memory is allocated.
struct PreparedRun : Prepared {
  std::unique_ptr<RunLock> lock;
  std::vector<std::filesystem::path> beginnings;  ///< checkpoints to go on from, the best first
  std::optional<GivenWeights> given;  ///< where there are none: what to start with, if not with drawn weights
};

/// "HH:MM:SS".
std::optional<std::chrono::seconds> seconds_of(const std::string& limit) {
  if (limit.empty()) return std::nullopt;
  std::int64_t hours = 0;
  int minutes = 0, seconds = 0, end = 0;
  const int read = std::sscanf(limit.c_str(), "%ld:%2d:%2d%n", &hours, &minutes, &seconds, &end);
  constexpr std::int64_t longest = 1'000'000;  // hours: what a clock's nanoseconds hold
  const bool sound = read == 3 && static_cast<std::size_t>(end) == limit.size() && hours >= 0 && hours <= longest &&
                     minutes >= 0 && minutes < 60 && seconds >= 0 && seconds < 60;
  if (!sound) throw Error(Exit::usage, "--time-limit " + limit + ": must read HH:MM:SS, as 03:50:00");
  return std::chrono::seconds(hours * 3600 + minutes * 60 + seconds);
}

/// A run that is refused for other reasons leaves no trace behind. The run directory is not there yet, or was tried.
void check_trace(const std::string& trace, const std::filesystem::path& directory, Problems& problems) {
  namespace fs = std::filesystem;
  const auto folder = [](const fs::path& file) { return fs::absolute(file).lexically_normal().parent_path(); };
  if (trace.empty() || folder(trace) == folder(directory / "trace")) return;
  std::error_code absent;
  const bool was_there = fs::exists(trace, absent);
  if (!std::ofstream(trace, std::ios::app))
    problems.add(
        Exit::environment,
        fmt::format("debug.trace: {} cannot be written: {}; name a file in a folder that is there and writable", trace,
                    std::strerror(errno)));
  else if (!was_there)
    fs::remove(trace, absent);
}

/// Makes the run directory where there is none, and keeps others out.
std::unique_ptr<RunLock> claim(const std::filesystem::path& directory, Control& control) {
  Problems problems;
  if (control.rank() == 0) prepare_run_directory(directory, problems);
  control.agree(problems);
  auto lock = std::make_unique<RunLock>(directory, control);
  if (control.rank() == 0) remove_leftovers(directory);
  return lock;
}

/// What the deck starts from. Collective.
GivenWeights starting_weights(const Deck& deck, Control& control) {
  try {
    return open_weights(deck.config.checkpoint.init_from, control);
  } catch (const Error& error) {  // the same on every rank
    throw Error(error.code(), deck.provenance.located({{"checkpoint.init_from"}, error.what()}));
  }
}

PreparedRun prepare(const TrainOptions& options, const Mpi& mpi, Control& control) {
  PreparedRun run{prepare(options.deck, options.overrides, Task::training, mpi, control), {}, {}, {}};
  const RunConfig& config = run.deck.config;
  const std::filesystem::path directory = config.checkpoint.dir.get();
  // Checkpoints are looked for under the lock. A directory that is not there has none, and is made last of all: a
  // refused run leaves nothing behind.
  std::error_code unseen;  // claim() says what is wrong with a path
  if (control.max(control.rank() == 0 && exists(directory, unseen))) run.lock = claim(directory, control);
  Problems problems;
  run.beginnings = beginnings({options.resume}, config.checkpoint.dir.get(), control);
  if (!run.beginnings.empty()) problems.add(against_resuming(run.beginnings.front(), run.deck, run.corpus->hash()));
  if (run.beginnings.empty() && !config.checkpoint.init_from.empty()) {
    run.given = starting_weights(run.deck, control);
    problems.add(against_starting(*run.given, run.deck, *run.plan));
  }
  if (mpi.rank() == 0) check_trace(config.debug.trace, directory, problems);
  control.agree(problems);
  if (!run.lock) run.lock = claim(directory, control);
  return run;
}

/// Where every rank runs, on every rank.
std::vector<RankPlace> places(const PreparedRun& run, const Mpi& mpi, Control& control) {
  const std::vector<std::string> hosts = control.gather(mpi.host()), gpus = control.gather(std::to_string(run.gpu)),
                                 names = control.gather(Runtime::gpu().name);
  std::vector<RankPlace> all;
  for (std::size_t r = 0; r < hosts.size(); ++r) all.push_back({hosts[r], std::stoi(gpus[r]), names[r]});
  return all;
}

RunRecord record_of(const PreparedRun& run, const TrainOptions& options) {
  const RunConfig& config = run.deck.config;
  const Build build = this_build();
  RunRecord record;
  record.name = config.run.name;
  record.command_line = options.command_line;
  record.deck_path = options.deck;
  record.deck_hash = fmt::format("{:016x}", run.deck.text_hash);
  record.resolved_deck_hash = fmt::format("{:016x}", fnv1a64(resolved_text(run.deck)));
  record.version = build.version;
  record.git_sha = build.git_sha;
  record.compiler = build.compiler;
  record.back_end = build.back_end;
  record.mpi = build.mpi;
  for (const Library& library : build.libraries) record.libraries[library.name] = library.version;
  record.threads_per_rank = config.run.threads;
  record.environment = allowed_environment();
  record.seed = config.run.seed;
  record.data_hash = run.corpus->hash();
  record.data_files = run.corpus->files();
  record.data_tokens = run.corpus->tokens().count();
  record.started = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  return record;
}

/// The resolved deck, written by rank 0, and the head of the log.
void describe(const PreparedRun& run, Control& control) {
  Problems problems;
  if (control.rank() == 0) {
    const std::filesystem::path directory = run.deck.config.checkpoint.dir.get();
    attempt(problems, [&] { replace_text_file(directory / "deck.resolved.yaml", resolved_text(run.deck)); });
    for (const Finding& finding : advise(run.deck.config))
      fmt::print(stderr, "{} (allowed)\n", run.deck.provenance.located(finding));
    fmt::print("{}\n{}\n{}\n", resolved_text(run.deck), corpus_text(run), plan_text(*run.plan));
    std::fflush(stdout);
  }
  control.agree(problems);
}

/// Rank 0's log, null elsewhere, and run.json, which says how many starts there were before. Collective.
std::unique_ptr<RunLog> open_log(const PreparedRun& run, const TrainOptions& options, const AgreedPlans& plans,
                                 std::int64_t step, const Mpi& mpi, Control& control) {
  std::unique_ptr<RunLog> log;
  RunRecord record = record_of(run, options);
  record.library_plans = plans;
  record.ranks = places(run, mpi, control);
  const RunConfig& config = run.deck.config;
  Problems problems;
  if (mpi.rank() == 0)
    attempt(problems, [&] {
      log = std::make_unique<RunLog>(*run.plan, step, peak_here(config.precision.compute));
      record.restart = log->restarts();
      replace_text_file(std::filesystem::path(config.checkpoint.dir.get()) / "run.json", to_json(record));
    });
  control.agree(problems);
  return log;
}

void print_sample(Training& training, const RunPlan& plan) {
  const SampleConfig& sample = plan.config.sample;
  if (sample.tokens == 0) return;
  std::vector<std::int32_t> prompt;
  for (unsigned char c : sample.prompt) prompt.push_back(c);
  fmt::print("sample: {}", sample.prompt);
  Characters characters;
  generate(training.engine(), plan, prompt, sample.tokens, [&](std::int32_t token) {
    fmt::print("{}", characters.take(static_cast<char>(token)));
    std::fflush(stdout);
  });
  fmt::print("{}\n", characters.rest());
}

/// Goes on from a checkpoint if there is one; says what a save records of this run.
Origin begin(const PreparedRun& run, const TrainOptions& options, const Mpi& mpi, Control& control, Training& training,
             Device& device) {
  Origin origin;
  origin.run_id = control.broadcast(fmt::format(
      "{:016x}", std::random_device()() * std::uint64_t{0x100000001} ^ static_cast<std::uint64_t>(std::time(nullptr))));
  if (!run.beginnings.empty()) {
    const Parent parent = resume_from(run.beginnings, training, device, control);
    origin.run_id = parent.manifest.run_id;
    origin.parent = parent.folder.string();
    origin.parent_digest = parent.manifest.content_digest;
    if (mpi.rank() == 0) fmt::print("resumed from {} | {}\n", origin.parent, origin.parent_digest);
  }
  if (run.given) {
    const GivenWeights& given = *run.given;
    training.initialise([&](StateDict& weights) { load_weights(*given.source, weights, device, control); });
    origin.parent = given.path.string();
    origin.parent_digest = given.content_digest;
    const std::string digest = given.content_digest.empty() ? "" : " | " + given.content_digest;
    if (mpi.rank() == 0) fmt::print("starts with the weights of {}{}\n", origin.parent, digest);
  }
  const RunConfig& config = run.deck.config;
  const Build build = this_build();
  origin.version = build.version;
  origin.git_sha = build.git_sha;
  origin.libraries = libraries_text(build);
  origin.mesh = fmt::format("data {}", mpi.size());
  origin.steps = config.run.steps;
  origin.optimizer = config.optimizer;
  origin.deck = resolved_text(run.deck);
  origin.model_sha256 = model_fingerprint(config.model);
  origin.corpus_hash = run.corpus->hash();
  origin.world_size = mpi.size();
  const ExpertLayout layout = config.checkpoint.expert_layout;
  const ExpertWeights held = config.model.moe ? config.model.moe->weights : ExpertWeights::single;
  origin.experts = layout == ExpertLayout::as_in_memory ? held
                   : layout == ExpertLayout::single     ? ExpertWeights::single
                                                        : ExpertWeights::discrete;
  origin.command_line = fmt::format("{}", fmt::join(options.command_line, " "));
  origin.hosts = control.broadcast(fmt::format("{}", fmt::join(control.gather(mpi.host()), " ")));
  return origin;
}

int train(const TrainOptions& options, Stop& stop, Mpi& mpi, Control& before_deck) {
  Problems problems;
  attempt(problems, [&] {
    stop.limit({options.stop_at < 0 ? std::nullopt : std::optional(options.stop_at), seconds_of(options.time_limit)});
    fault::arm(mpi.rank());
  });
  if (const std::string mistake = mpi.launch_mistake(); !mistake.empty()) problems.add(Exit::environment, mistake);
  before_deck.agree(problems);
  const PreparedRun run = prepare(options, mpi, before_deck);
  const RunConfig& config = run.deck.config;
  const std::chrono::seconds patience(config.comm.timeout_s);
  const std::unique_ptr<Control> own_control = mpi.control(patience);
  Control& control = *own_control;
  const Runtime runtime(static_cast<int>(config.run.threads.get()), run.gpu);
  describe(run, control);
  Device device;
  const AgreedPlans plans = use_library_plans(device, *run.plan, run.beginnings, control);
  std::vector<Record> records;
  // A traced run is being looked into: name a collective that differs before it is begun, not at the step's end.
  const Compare compare = config.debug.trace.empty() ? Compare::at_boundaries : Compare::before_each;
  auto communicator = mpi.world(device, patience, {.compare = compare});
  if (!config.debug.trace.empty()) communicator = recording(std::move(communicator), records);
  Training training(device, *run.plan, Batches(config, run.corpus->tokens(), run.windows, mpi.rank(), mpi.size()),
                    *communicator, control, records);
  Origin origin = begin(run, options, mpi, control, training, device);
  origin.library_plans = to_text(plans.plans);
  const std::unique_ptr<RunLog> log = open_log(run, options, plans, training.step(), mpi, control);
  Saving saving(device, config, control, training, stop, *run.lock, std::move(origin));
  const Proceed proceed =
      training.run([&](const MetricsRow& row) { return log ? log->row(row) : Problems(); }, std::ref(saving));
  const ClosingReport closing = closing_report(device, *communicator, *run.plan, control,
                                                 {log ? log->seconds() : 1, training.late_allocations()});
  if (log) log->close(closing);
  if (proceed == Proceed::stop) return static_cast<int>(Exit::stopped);
  if (mpi.rank() == 0) print_sample(training, *run.plan);
  return 0;
}

}  // namespace

int run_train(const TrainOptions& options) {
  Stop stop;
  const int code = on_all_ranks([&](Mpi& mpi, Control& control) { return train(options, stop, mpi, control); });
  stop.outlast_ranks();
  return code;
}

}  // namespace tessera
