#include <chrono>
#include <cmath>

#include <fmt/format.h>

#include "app/cli/ranks.hpp"
#include "app/training/given_weights.hpp"
#include "app/training/library_plans.hpp"
#include "app/training/preparation.hpp"
#include "app/training/training.hpp"
#include "app/verbs/verbs.hpp"
#include "core/comm/make_on_all.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

void print(const EvalOptions& options, const StateCounters& counters, float loss) {
  if (options.format == Format::json)
    fmt::print("{{\"step\":{},\"eval_loss\":{},\"tokens\":{}}}\n", counters.step, loss, counters.tokens);
  else
    fmt::print("step {} | eval_loss {} | {} tokens trained on\n", counters.step, loss, counters.tokens);
}

/// The checkpoint that the weights are of; none for a Hugging Face folder.
std::vector<std::filesystem::path> saved(const GivenWeights& given) {
  if (given.content_digest.empty()) return {};
  return {given.path};
}

int eval(const EvalOptions& options, Mpi& mpi, Control& control) {
  Problems problems;
  if (const std::string mistake = mpi.launch_mistake(); !mistake.empty()) problems.add(Exit::environment, mistake);
  control.agree(problems);
  const Prepared run = prepare(options.deck, options.overrides, Task::evaluation, mpi, control);
  const RunConfig& config = run.deck.config;
  const std::chrono::seconds patience(config.comm.timeout_s);
  control.wait_at_most(patience);
  const GivenWeights given = open_weights(options.checkpoint, control);
  control.agree(problems_with_weights(given, *run.plan, {}));
  const Runtime runtime(static_cast<int>(config.run.threads.get()), run.gpu);
  Device device;
  use_library_plans(device, *run.plan, saved(given), control);
  Mesh mesh = mpi.mesh(device, run.plan->ranks, patience, {.copy_engines = config.proof.copy_engines});
  std::vector<Record> no_records;
  const auto training = make_on_all<Training>(control, device, *run.plan, run.batches(), mesh, control, no_records);
  return or_end_all_ranks(mpi, [&] {
    training->initialise([&](StateDict& weights) { load_weights(*given.source, weights, device, control); });
    const auto loss = static_cast<float>(training->evaluate());  // the same on all ranks
    if (!std::isfinite(loss))
      throw Error(Exit::numerical, fmt::format("{}: the loss of these weights is {}", options.checkpoint,
                                                    std::isnan(loss) ? "no number" : "infinite"));
    if (mpi.rank() == 0) print(options, given.counters, loss);
    return 0;
  });
}

}  // namespace

int run_eval(const EvalOptions& options) {
  return on_all_ranks([&](Mpi& mpi, Control& control) { return eval(options, mpi, control); });
}

}  // namespace tessera
