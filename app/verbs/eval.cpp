#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/cli/ranks.hpp"
#include "app/training/loop/training.hpp"
#include "app/training/start/evaluated.hpp"
#include "app/training/start/given_weights.hpp"
#include "app/training/start/known_tokenizer.hpp"
#include "app/training/start/library_plans.hpp"
#include "app/training/start/measured_text.hpp"
#include "app/training/start/preparation.hpp"
#include "app/training/start/settle_units.hpp"
#include "app/verbs/verbs.hpp"
#include "core/comm/make_on_all.hpp"
#include "io/metrics/console.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

/// An evaluation, for its reader.
struct Answer {
  std::string extent;  ///< what was evaluated, as text
  std::int64_t windows = 0, kept = 0, tokens = 0;
  std::int64_t bytes = 0;                 ///< that the tokens stand for; 0: unknown
  std::string recipe, saved_recipe;  ///< of this evaluation; of the run that saved the weights, empty if unknown
};

void print(Format format, const StateCounters& counters, float loss, const Answer& answer) {
  const double perplexity = std::exp(double{loss}), nats = double{loss} * static_cast<double>(answer.tokens);
  const double bits = nats / std::numbers::ln2 / static_cast<double>(std::max<std::int64_t>(1, answer.bytes));
  const bool known = answer.bytes > 0;
  if (format == Format::json)
    return fmt::print(
        "{{\"step\":{},\"eval_loss\":{},\"tokens\":{},\"perplexity\":{:.6g}{},\"eval_windows\":{},"
        "\"eval_windows_kept\":{},\"eval_tokens\":{},\"recipe\":{}{}}}\n",
        counters.step, loss, counters.tokens, perplexity,
        known ? fmt::format(",\"bits_a_byte\":{:.6g},\"eval_bytes\":{}", bits, answer.bytes) : "", answer.windows,
        answer.kept, answer.tokens, quoted(answer.recipe),
        answer.saved_recipe.empty() ? "" : fmt::format(",\"checkpoint_recipe\":{}", quoted(answer.saved_recipe)));
  const bool other = !answer.saved_recipe.empty() && answer.saved_recipe != answer.recipe;
  fmt::print("step {} | eval_loss {} | perplexity {:.6g}{} | {} | recipe {}{} | {} tokens trained on\n", counters.step,
             loss, perplexity, known ? fmt::format(" | {:.6g} bits a byte", bits) : "", answer.extent, answer.recipe,
             other ? fmt::format(" (the checkpoint's is {})", answer.saved_recipe) : "", counters.tokens);
}

/// The checkpoint that the weights are of; none for a Hugging Face folder.
std::vector<std::filesystem::path> saved(const GivenWeights& given) {
  if (given.content_digest.empty()) return {};
  return {given.path};
}

std::string saved_recipe(const GivenWeights& given) {
  return saved(given).empty() ? "" : recipe_text(given.config.precision);
}

/// Loads the weights, evaluates `batches` and prints the answer. Collective over the world.
int evaluate_weights(const EvalOptions& options, Prepared& run, const GivenWeights& given, Batches batches,
                     const Answer& answer, Mpi& mpi, Control& control) {
  const RunConfig& config = run.deck.config;
  const Runtime runtime(static_cast<int>(config.run.threads.get()), run.gpu);
  settle_units(run, mpi, control);
  Device device;
  use_library_plans(device, *run.plan, saved(given), control);
  Mesh mesh = mpi.mesh(device, run.plan->ranks, config.comm.timeout(),
                       {.copy_engines = config.proof.copy_engines});
  std::vector<Record> no_records;
  const auto training =
      make_on_all<Training>(control, device, *run.plan, std::move(batches), mesh, control, no_records);
  return or_end_all_ranks(mpi, [&] {
    training->initialise([&](StateDict& weights) { load_weights(*given.source, weights, device, control); });
    const auto loss = static_cast<float>(*training->evaluate());  // the same on all ranks
    if (!std::isfinite(loss))
      throw Error(Exit::numerical, fmt::format("{}: the loss of these weights is {}", given.path.string(),
                                                    std::isnan(loss) ? "no number" : "infinite"));
    if (mpi.rank() == 0) print(options.format, given.counters, loss, answer);
    return 0;
  });
}

/// Problems with evaluating the weights by the deck; adds what else there is to tell, a line each.
Problems problems_with_evaluating(Prepared& run, const GivenWeights& given, std::vector<std::string>& told) {
  Problems problems = problems_with_weights(given, *run.plan, {});
  attempt(problems, [&] {
    const KnownTokenizer theirs = tokenizer_of(given), ours = tokenizer_of(run);
    const std::string other = other_tokens(theirs, ours, told);
    const std::string text = fmt::format("{}: these weights were trained with another tokenizer than {}: {}",
                                         theirs.name, ours.name, other);
    if (!other.empty() && run.deck.config.checkpoint.init_other_tokenizer) told.push_back(text + " (allowed)");
    else if (!other.empty())
      problems.add(Exit::file, text + ". Evaluate with theirs, or say checkpoint.init_other_tokenizer: true, and their "
                                      "rows stand for other tokens");
    if (given.corpus_hash == hex(run.corpus_hash())) told.push_back(keep_windows(run, given.config));
    told.push_back(overlap_text(given, run));
    told.push_back(doubt_text(evaluated_by(run)));
    if (!run.trained_copy.empty()) told.push_back("WARNING: " + run.trained_copy);
  });
  return problems;
}

/// Evaluates the windows of a deck.
int eval_deck(const EvalOptions& options, Mpi& mpi, Control& control) {
  Prepared run = prepare(options.deck, options.overrides, Task::evaluation, mpi, control);
  const RunConfig& config = run.deck.config;
  control.wait_at_most(config.comm.timeout());
  const GivenWeights given = open_weights(options.checkpoint, control);
  std::vector<std::string> told;
  control.agree(problems_with_evaluating(run, given, told));
  for (const std::string& line : told)
    if (mpi.rank() == 0 && !line.empty()) fmt::print(stderr, "{}\n", line);
  const Evaluated taken = evaluated_by(run);
  return evaluate_weights(options, run, given, run.batches(),
                          {.extent = extent_text(taken),
                           .windows = taken.windows,
                           .kept = taken.kept,
                           .tokens = taken.tokens,
                           .bytes = config.data.kind == DataKind::text ? taken.tokens : 0,
                           .recipe = recipe_text(config.precision),
                           .saved_recipe = saved_recipe(given)},
                          mpi, control);
}

/// Evaluates every token of a text but the first.
int eval_text(const EvalOptions& options, Mpi& mpi, Control& control) {
  Problems problems;
  std::string path;
  attempt(problems, [&] { path = path_of_weights(options.deck); });
  control.agree(problems);
  const GivenWeights given = open_weights(path, control);
  Deck deck;
  std::unique_ptr<TextEncoding> encoding;
  attempt(problems, [&] { deck = deck_to_measure(given, options.overrides); });
  attempt(problems, [&] {
    if (!(encoding = encoding_of(given)))
      throw Error(Exit::file, fmt::format("{}: holds no {}, so no text can be encoded: put the model's there",
                                          given.path.string(), tokenizer_file));
  });
  control.agree(problems);
  control.wait_at_most(deck.config.comm.timeout());
  const std::string text = text_to_measure(options.text, control);
  MeasuredText measures;
  attempt(problems, [&] { measures = measured(options.text, text, *encoding, deck.config.model.seq_len); });
  control.agree(problems);
  Prepared run = prepare_without_corpus(std::move(deck), mpi, control);
  control.agree(problems_with_weights(given, *run.plan, {}));
  RunConfig& config = run.deck.config;
  const std::int64_t windows = measures.windows.evaluation, tokens = measures.windows.evaluation_targets(windows);
  config.eval.batches = ceil_div(windows, config.batch.global);
  return evaluate_weights(options, run, given,
                          {config,
                           std::vector<CutTokens>(),
                           {measures.tokens, measures.windows},
                           run.plan->ranks.world},
                          {.extent = fmt::format("{}, {} of {}, {}", counted(windows, "window"), tokens,
                                                 counted(tokens + 1, "token"), counted(measures.bytes, "byte")),
                           .windows = windows,
                           .kept = windows,
                           .tokens = tokens,
                           .bytes = measures.bytes,
                           .recipe = recipe_text(config.precision),
                           .saved_recipe = saved_recipe(given)},
                          mpi, control);
}

}  // namespace

int run_eval(const EvalOptions& options) {
  return on_all_ranks([&](Mpi& mpi, Control& control) {
    Problems problems;
    if (const std::string mistake = mpi.launch_mistake(); !mistake.empty()) problems.add(Exit::environment, mistake);
    control.agree(problems);
    return options.text.empty() ? eval_deck(options, mpi, control) : eval_text(options, mpi, control);
  });
}

}  // namespace tessera
