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
#include "io/checkpoint/branch.hpp"
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

/// Makes the run directory where there is none, keeps others out, and puts in order what a killed run left behind.
std::unique_ptr<RunLock> claim(const std::filesystem::path& directory, Control& control) {
  Problems problems;
  if (control.rank() == 0) prepare_run_directory(directory, problems);
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

/// The head of the log, by rank 0.
void describe(const PreparedRun& run) {
  for (const Finding& finding : advise(run.deck.config))
    fmt::print(stderr, "{} (allowed)\n", run.deck.provenance.located(finding));
  fmt::print("{}\n{}\n{}\n", resolved_text(run.deck), corpus_text(run), plan_text(*run.plan));
  if (const std::string slow = slow_products_text(run.deck.config.precision.compute); !slow.empty())
    fmt::print("speed: {}\n", slow);
  std::fflush(stdout);
}

/// What a run begins with.
struct Beginning {
  Origin origin;
  std::int64_t step = 0;   ///< steps done
  std::int64_t kept = -1;  ///< as Parent's; -1 too where there is no parent
};

bool rewinds(const TrainOptions& options) { return options.resume != "auto" && options.resume != "none"; }

/// From here on the directory holds two lines of steps, until the first checkpoint of the new one. Local.
void branch_off(const std::filesystem::path& directory, const Beginning& beginning) {
  const std::vector<std::string> left = begin_branch(directory, beginning.origin.parent, beginning.kept, metrics_file);
  if (!left.empty())
    fmt::print("a branch begins after step {}: its first checkpoint sets {} aside\n", beginning.step,
               fmt::join(left, ", "));
}

/// run.json with this start and those before.
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

/// Rank 0's log, null elsewhere, and what else the run directory says of this start: the resolved deck, run.json, a
/// branch that begins. Collective.
std::unique_ptr<RunLog> open_records(const PreparedRun& run, const TrainOptions& options, const AgreedPlans& plans,
                                     const Beginning& beginning, const Mpi& mpi, Control& control) {
  std::unique_ptr<RunLog> log;
  RunRecord record = record_of(run, options);
  record.library_plans = plans;
  record.ranks = places(run, mpi, control);
  record.step = beginning.step;
  if (!run.beginnings.empty()) record.resumed_from = beginning.origin.parent;
  const RunConfig& config = run.deck.config;
  const std::filesystem::path directory = config.checkpoint.dir.get();
  Problems problems;
  if (mpi.rank() == 0)
    attempt(problems, [&] {
      if (rewinds(options)) branch_off(directory, beginning);
      log = std::make_unique<RunLog>(*run.plan, beginning.step, peak_here(config.precision.compute));
      record.restart = log->restarts();
      replace_text_file(directory / "deck.resolved.yaml", resolved_text(run.deck));
      replace_text_file(directory / "run.json", record_text(record, directory / "run.json"));
    });
  control.agree(problems);
  return log;
}

/// All ranks generate, rank 0 prints. Collective.
void print_sample(Training& training, const RunPlan& plan) {
  const SampleConfig& sample = plan.config.sample;
  if (sample.tokens == 0) return;
  const auto show = [&](const std::string& text) {
    if (plan.ranks.world.rank != 0) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  std::vector<std::int32_t> prompt;
  for (unsigned char c : sample.prompt) prompt.push_back(c);
  show("sample: " + sample.prompt);
  Characters characters;
  generate(training.engine(), plan, prompt, sample.tokens,
           [&](std::int32_t token) { show(characters.take(static_cast<char>(token))); });
  show(characters.rest() + "\n");
}

/// Goes on from a checkpoint if there is one; says what a save records of this run.
Beginning begin(const PreparedRun& run, const TrainOptions& options, const Mpi& mpi, Control& control,
                Training& training, Device& device) {
  Beginning beginning;
  Origin& origin = beginning.origin;
  const RunConfig& config = run.deck.config;
  origin.run_id = control.broadcast(fmt::format(
      "{:016x}", std::random_device()() * std::uint64_t{0x100000001} ^ static_cast<std::uint64_t>(std::time(nullptr))));
  if (!run.beginnings.empty()) {
    const Parent parent = resume_from(run.beginnings, config.checkpoint.dir.get(), training, device, control);
    beginning.step = parent.manifest.counters.step;
    beginning.kept = parent.kept;
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
  return beginning;
}

/// What one says of a run that stopped, and how it goes on.
std::string stopped_text(std::int64_t step, std::int64_t steps, const Stop& stop) {
  return fmt::format("stopped after step {} of {} ({})", step, steps, stop.cause());
}
/// `saved`: the newest step in the run directory, as `before` was when the run began.
std::string ways_on(const TrainOptions& options, const Stop& stop, std::int64_t saved, std::int64_t before) {
  std::vector<std::string> without;  // what would go back from what was saved, or stop at once
  if (options.resume != "auto" && saved != before) without.push_back("--resume " + options.resume);
  if (stop.cause() == "--stop-at") without.push_back(stop.cause());
  return "the same command goes on" + (without.empty() ? "" : fmt::format(" without {}", fmt::join(without, " and ")));
}

/// Whether all ranks threw an error alike, so that they may go on together.
bool agreed(const Error& error) { return error.code() != Exit::internal && error.code() != Exit::communication; }

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
  if (mpi.rank() == 0) describe(run);
  Device device;
  const AgreedPlans plans = use_library_plans(device, *run.plan, run.beginnings, control);
  std::vector<Record> records;
  // A traced run is being looked into: name a collective that differs before it is begun, not at the step's end.
  const Compare compare = config.debug.trace.empty() ? Compare::at_boundaries : Compare::before_each;
  Mesh mesh = mpi.mesh(device, run.plan->ranks, patience, {.compare = compare});
  if (!config.debug.trace.empty())
    mesh.wrap([&](std::unique_ptr<Communicator> one) { return recording(std::move(one), records); });
  Training training(device, *run.plan, Batches(config, run.corpus->tokens(), run.windows, run.plan->ranks.world), mesh,
                    control, records);
  Beginning beginning = begin(run, options, mpi, control, training, device);
  if (beginning.kept >= config.run.steps) {
    if (mpi.rank() == 0) fmt::print("{} of {} steps done, nothing to do\n", beginning.kept, config.run.steps);
    return 0;
  }
  beginning.origin.library_plans = to_text(plans.plans);
  const std::unique_ptr<RunLog> log = open_records(run, options, plans, beginning, mpi, control);
  Saving saving(device, config, control, training, stop, *run.lock, std::move(beginning.origin), beginning.kept);
  const auto close = [&](const std::string& end) {
    const ClosingReport closing = closing_report(device, mesh, *run.plan, control,
                                                 {log ? log->seconds() : 1, training.late_allocations()});
    if (log && run.lock->held()) log->close(closing, end);
  };
  Proceed proceed = Proceed::go_on;
  try {
    proceed = training.run([&](const MetricsRow& row) { return log ? log->row(row) : Problems(); }, std::ref(saving));
  } catch (const Error& error) {
    if (agreed(error)) close(error.what());
    throw;
  }
  const std::string stopped = stopped_text(training.step(), config.run.steps, stop);
  close(proceed == Proceed::stop ? stopped : "all steps done");
  if (proceed == Proceed::stop) {
    if (mpi.rank() == 0) fmt::print("{}; {}\n", stopped, ways_on(options, stop, saving.saved(), beginning.kept));
    return static_cast<int>(Exit::stopped);
  }
  print_sample(training, *run.plan);
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
