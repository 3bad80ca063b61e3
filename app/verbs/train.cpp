#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "app/cli/build.hpp"
#include "app/cli/threads.hpp"
#include "app/training/generation.hpp"
#include "app/training/plan_text.hpp"
#include "app/training/report.hpp"
#include "app/training/run_log.hpp"
#include "app/training/training.hpp"
#include "app/verbs/verbs.hpp"
#include "core/comm/mpi.hpp"
#include "io/data/corpus.hpp"
#include "io/metrics/run_directory.hpp"
#include "io/metrics/run_record.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

/// Runs `phase` on this rank; what it throws becomes a problem, so that all ranks can agree on it afterwards.
template <class Phase>
void attempt(Problems& problems, const Phase& phase) {
  try {
    phase();
  } catch (const Error& error) {
    problems.add(error.code(), error.what());
  } catch (const std::exception& error) {
    problems.add(Exit::internal, error.what());
  }
}

/// Everything about a run that can be found wrong before memory is allocated.
struct Prepared {
  Deck deck;
  std::optional<RunPlan> plan;
  std::optional<Corpus> corpus;
  Windows windows;
};

void read_corpus(Prepared& run, Problems& problems) {
  const RunConfig& config = run.deck.config;
  const FileSet files{config.data.root.get(), config.data.files, config.checkpoint.dir.get()};
  attempt(problems, [&] {
    run.corpus.emplace(config.data.kind == DataKind::text ? Corpus::text(files) : Corpus::token_files(files));
    run.corpus->check_vocabulary(config.model.vocab, problems);
    run.windows =
        Windows::split(run.corpus->tokens().count(), config.model.seq_len, config.data.eval_fraction, problems);
  });
}

/// Last of all checks, since it makes the run directory: a refused run leaves nothing behind.
void prepare_outputs(const RunConfig& config, Problems& problems) {
  prepare_run_directory(config.checkpoint.dir.get(), problems);
  const std::string& trace = config.debug.trace;
  if (problems.empty() && !trace.empty() && !std::ofstream(trace, std::ios::app))
    problems.add(
        Exit::environment,
        fmt::format("debug.trace: {} cannot be written: {}; name a file in a folder that is there and writable", trace,
                    std::strerror(errno)));
}

Prepared prepare(const TrainOptions& options, const Mpi& mpi, Control& control) {
  Prepared run;
  Problems problems;
  attempt(problems, [&] { run.deck = read_deck(options.deck, options.overrides, problems); });
  control.agree(problems);
  RunConfig& config = run.deck.config;
  config.run.threads.fill(host_threads(control.max(mpi.local_rank() + 1)));
  Runtime::plan_for(static_cast<int>(config.run.threads.get()));
  for (const Finding& finding : refusals(config, mpi.size()))
    problems.add(Exit::deck, run.deck.provenance.located(finding));
  read_corpus(run, problems);
  control.agree(problems);
  attempt(problems, [&] { run.plan.emplace(resolve(config, mpi.size())); });
  control.agree(problems);
  const auto hash = static_cast<std::int64_t>(run.plan->layout.hash() >> 1);
  if (control.max(hash) != hash)
    problems.add(Exit::internal, "the ranks planned different layouts: are they the same binary?");
  control.agree(problems);
  if (mpi.rank() == 0) prepare_outputs(config, problems);
  control.agree(problems);
  return run;
}

RunRecord record_of(const Prepared& run, const TrainOptions& options, const std::vector<std::string>& hosts) {
  const RunConfig& config = run.deck.config;
  const Build build = this_build();
  RunRecord record;
  record.name = config.run.name;
  record.command_line = options.command_line;
  record.deck_path = options.deck;
  Problems ignored;  // the deck was read a moment ago
  record.deck_hash = fmt::format("{:016x}", fnv1a64(read_deck_text(options.deck, ignored)));
  record.resolved_deck_hash = fmt::format("{:016x}", fnv1a64(resolved_text(run.deck)));
  record.version = build.version;
  record.compiler = build.compiler;
  record.back_end = build.back_end;
  for (const Library& library : build.libraries) record.libraries[library.name] = library.version;
  for (const std::string& host : hosts) record.ranks.push_back({host, -1, ""});
  record.threads_per_rank = config.run.threads;
  record.environment = allowed_environment();
  record.seed = config.run.seed;
  record.data_hash = run.corpus->hash();
  record.data_files = run.corpus->files();
  record.data_tokens = run.corpus->tokens().count();
  record.started = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  return record;
}

/// The resolved deck and run.json, written by rank 0, and the head of the log.
void describe(const Prepared& run, const TrainOptions& options, const Mpi& mpi, Control& control) {
  const std::vector<std::string> hosts = control.gather(mpi.host());
  Problems problems;
  if (mpi.rank() == 0) {
    const std::filesystem::path directory = run.deck.config.checkpoint.dir.get();
    write_text_file(directory / "deck.resolved.yaml", resolved_text(run.deck), problems);
    write_text_file(directory / "run.json", to_json(record_of(run, options, hosts)), problems);
    for (const Finding& finding : advise(run.deck.config))
      fmt::print(stderr, "{} (allowed)\n", run.deck.provenance.located(finding));
    fmt::print("{}\n{}\n", resolved_text(run.deck), plan_text(*run.plan));
    std::fflush(stdout);
  }
  control.agree(problems);
}

void print_sample(Training& training, const RunPlan& plan) {
  const SampleConfig& sample = plan.config.sample;
  if (sample.tokens == 0) return;
  std::vector<std::int32_t> prompt;
  for (unsigned char c : sample.prompt) prompt.push_back(c);
  if (prompt.empty()) prompt.push_back('\n');
  const bool text = plan.config.data.kind == DataKind::text;
  fmt::print("sample: {}", text ? sample.prompt : "");
  generate(training.engine(), plan, prompt, sample.tokens, [&](std::int32_t token) {
    if (text)
      std::fputc(token, stdout);
    else
      fmt::print("{} ", token);
    std::fflush(stdout);
  });
  fmt::print("\n");
}

int train(const TrainOptions& options, Mpi& mpi, Control& control) {
  Problems problems;
  if (const std::string mistake = mpi.launch_mistake(); !mistake.empty()) problems.add(Exit::environment, mistake);
  control.agree(problems);
  const Prepared run = prepare(options, mpi, control);
  const RunConfig& config = run.deck.config;
  const Runtime runtime(static_cast<int>(config.run.threads.get()));
  describe(run, options, mpi, control);
  Device device;
  std::vector<Record> records;
  auto communicator = mpi.world(device.communication(), std::chrono::seconds(config.comm.timeout_s));
  if (!config.debug.trace.empty()) communicator = recording(std::move(communicator), records);
  Training training(device, *run.plan, Batches(config, run.corpus->tokens(), run.windows, mpi.rank(), mpi.size()),
                    *communicator, control, records);
  std::optional<RunLog> log;
  if (mpi.rank() == 0) attempt(problems, [&] { log.emplace(*run.plan); });
  control.agree(problems);
  training.run([&](const MetricsRow& row) { return log ? log->row(row) : Problems(); });
  fmt::print("{}", closing_report(device, *run.plan, control, log ? log->seconds() : 1));
  if (mpi.rank() == 0) print_sample(training, *run.plan);
  return 0;
}

}  // namespace

int run_train(const TrainOptions& options) {
  Mpi mpi(nullptr, nullptr);
  const auto control = mpi.control(std::chrono::seconds(300));
  try {
    return train(options, mpi, *control);
  } catch (const Error& error) {
    // Agreed failures reach every rank alike; an internal one may be this rank's own, which the others cannot learn of.
    if (error.code() == Exit::internal && mpi.size() > 1) mpi.abort(error.code(), error.what());
    if (mpi.rank() == 0) fmt::print(stderr, "{}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    mpi.abort(Exit::internal, error.what());
  }
}

}  // namespace tessera
