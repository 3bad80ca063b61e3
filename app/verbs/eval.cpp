#include <chrono>
#include <cmath>
#include <numbers>
#include <string_view>

#include <fmt/format.h>

#include "app/cli/ranks.hpp"
#include "app/training/given_weights.hpp"
#include "app/training/library_plans.hpp"
#include "app/training/preparation.hpp"
#include "app/training/training.hpp"
#include "app/verbs/verbs.hpp"
#include "core/comm/make_on_all.hpp"
#include "io/metrics/console.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

/// An evaluation, for its reader.
struct Answer {
  float loss = 0;  ///< nats a token
  std::int64_t windows = 0, kept = 0, tokens = 0;
  std::string_view recipe, saved_recipe;  ///< of this evaluation; of the run that saved the weights, empty if unknown
  bool bytes = false;                     ///< whether tokens are bytes
};

void print(const EvalOptions& options, const StateCounters& counters, const Answer& answer) {
  const double perplexity = std::exp(double{answer.loss}), bits = double{answer.loss} / std::numbers::ln2;
  if (options.format == Format::json)
    return fmt::print(
        "{{\"step\":{},\"eval_loss\":{},\"tokens\":{},\"perplexity\":{:.6g}{},\"eval_windows\":{},"
        "\"eval_windows_kept\":{},\"eval_tokens\":{},\"recipe\":\"{}\"{}}}\n",
        counters.step, answer.loss, counters.tokens, perplexity,
        answer.bytes ? fmt::format(",\"bits_a_byte\":{:.6g}", bits) : "", answer.windows, answer.kept, answer.tokens,
        answer.recipe,
        answer.saved_recipe.empty() ? "" : fmt::format(",\"checkpoint_recipe\":\"{}\"", answer.saved_recipe));
  const bool other = !answer.saved_recipe.empty() && answer.saved_recipe != answer.recipe;
  fmt::print("step {} | eval_loss {} | perplexity {:.6g}{} | {} of {}, {} | recipe {}{} | {} tokens trained on\n",
             counters.step, answer.loss, perplexity, answer.bytes ? fmt::format(" | {:.6g} bits a byte", bits) : "",
             answer.windows, counted(answer.kept, "window"), counted(answer.tokens, "token"), answer.recipe,
             other ? fmt::format(" (the checkpoint's is {})", answer.saved_recipe) : "", counters.tokens);
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
    const Windows& windows = (run.held ? *run.held : run.corpora.front()).windows;
    if (mpi.rank() == 0)
      print(options, given.counters,
            {.loss = loss,
             .windows = windows.evaluation,
             .kept = run.evaluation_kept,
             .tokens = windows.evaluation * windows.length,
             .recipe = name_of(config.precision.recipe),
             .saved_recipe = saved(given).empty() ? "" : name_of(given.config.precision.recipe),
             .bytes = config.data.kind == DataKind::text});
    return 0;
  });
}

}  // namespace

int run_eval(const EvalOptions& options) {
  return on_all_ranks([&](Mpi& mpi, Control& control) { return eval(options, mpi, control); });
}

}  // namespace tessera
