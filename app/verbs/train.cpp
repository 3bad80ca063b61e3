#include <chrono>
#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>

#include "app/cli/build.hpp"
#include "app/cli/threads.hpp"
#include "app/training/generation.hpp"
#include "app/training/plan_text.hpp"
#include "app/training/report.hpp"
#include "app/training/training.hpp"
#include "app/verbs/verbs.hpp"
#include "core/comm/mpi.hpp"
#include "io/data/corpus.hpp"
#include "io/metrics/run_directory.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

/// Runs `phase` on this rank; what it throws becomes a problem, so that all ranks can agree on it afterwards.
template <class Phase> void attempt(Problems& problems, const Phase& phase) {
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
    run.windows = Windows::split(run.corpus->tokens().count(), config.model.seq_len, config.data.eval_fraction, problems);
  });
}

Prepared prepare(const TrainOptions& options, const Mpi& mpi, Control& control) {
  Prepared run;
  Problems problems;
  attempt(problems, [&] { run.deck = read_deck(options.deck, options.overrides, problems); });
  control.agree(problems);
  RunConfig& config = run.deck.config;
  config.run.threads.fill(host_threads(control.max(mpi.local_rank() + 1)));
  for (const Finding& finding : refusals(config, mpi.size())) problems.add(Exit::deck, run.deck.provenance.located(finding));
  read_corpus(run, problems);
  if (mpi.rank() == 0) prepare_run_directory(config.checkpoint.dir.get(), problems);
  control.agree(problems);
  attempt(problems, [&] { run.plan.emplace(resolve(config, mpi.size())); });
  control.agree(problems);
  const auto hash = static_cast<std::int64_t>(run.plan->layout.hash() >> 1);
  if (control.max(hash) != hash) problems.add(Exit::internal, "the ranks planned different layouts: are they the same binary?");
  control.agree(problems);
  return run;
}

/// The resolved deck and what is known of the run beforehand, written by rank 0.
void describe(const Prepared& run, const TrainOptions& options, const Mpi& mpi, Control& control) {
  const std::vector<std::string> hosts = control.gather(mpi.host());
  Problems problems;
  if (mpi.rank() == 0) {
    const std::filesystem::path directory = run.deck.config.checkpoint.dir.get();
    const std::string resolved = resolved_text(run.deck);
    write_text_file(directory / "deck.resolved.yaml", resolved, problems);
    write_text_file(directory / "run.json", run_json(describe_run(options.command_line, run.deck, hosts, run.corpus->hash())), problems);
    fmt::print("{}\n{}\n", resolved, plan_text(*run.plan));
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
    if (text) std::fputc(token, stdout);
    else fmt::print("{} ", token);
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
  Training training(device, *run.plan, Batches(config, run.corpus->tokens(), run.windows, mpi.rank(), mpi.size()), *communicator,
                    control, records);
  std::optional<RunLog> log;
  attempt(problems, [&] { if (mpi.rank() == 0) log.emplace(config, *run.plan); });
  control.agree(problems);
  training.run([&](const MetricsRow& row) {
    if (log) log->row(row);
  });
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
