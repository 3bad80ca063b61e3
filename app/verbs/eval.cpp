#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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
#include "core/config/recipe_schedule.hpp"
#include "io/files/json_text.hpp"
#include "io/metrics/console.hpp"
#include "io/metrics/metrics_log.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

std::string quoted(const std::string& text) { return json_text(nlohmann::json(text)); }

/// The evaluation of a set, for its reader.
struct AnswerSet {
  std::string name = {};    ///< empty: the only one, which has none
  std::string extent = {};  ///< what was evaluated, as text
  std::int64_t windows = 0, kept = 0, tokens = 0;
  std::int64_t bytes = 0;                 ///< that the tokens stand for; 0: unknown
};
/// An evaluation, for its reader.
struct Answer {
  std::vector<AnswerSet> sets;
  std::size_t followed = 0;          ///< the set of eval.follow
  std::string recipe, saved_recipe;  ///< of this evaluation; of the run that saved the weights, empty if unknown
  Taken weights = Taken::trained;
};

/// A line for each set.
void print_text(const StateCounters& counters, const std::vector<float>& losses, const Answer& answer) {
  const bool other = !answer.saved_recipe.empty() && answer.saved_recipe != answer.recipe;
  const std::string others = other ? fmt::format(" (the checkpoint's is {})", answer.saved_recipe) : "";
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const AnswerSet& set = answer.sets[i];
    const std::optional<double> bits = bits_a_byte(losses[i], set.tokens, set.bytes);
    const std::string name = set.name.empty() ? "" : " " + set.name + " |";
    fmt::print("step {}{} |{} eval_loss {} | perplexity {:.6g}{} | {} | recipe {}{} | {} tokens trained on\n",
               counters.step, answer.weights == Taken::averages ? " (averages)" : "", name, losses[i],
               std::exp(double{losses[i]}), bits ? fmt::format(" | {:.6g} bits a byte", *bits) : "", set.extent,
               answer.recipe, others, counters.tokens);
  }
}

/// The fields of a set in a JSON object, `between` in their middle.
std::string fields(const AnswerSet& set, float loss, const std::string& between) {
  const std::optional<double> bits = bits_a_byte(loss, set.tokens, set.bytes);
  const std::string of_bytes =
      bits ? fmt::format(",\"bits_a_byte\":{:.6g},\"eval_bytes\":{}", *bits, set.bytes) : "";
  return fmt::format("\"eval_loss\":{}{},\"perplexity\":{:.6g}{},\"eval_windows\":{},\"eval_windows_kept\":{},"
                     "\"eval_tokens\":{}",
                     loss, between, std::exp(double{loss}), of_bytes, set.windows, set.kept, set.tokens);
}

/// One object: the followed set, and where sets have names all of them.
void print_json(const StateCounters& counters, const std::vector<float>& losses, const Answer& answer) {
  std::string sets;
  for (std::size_t i = 0; i < losses.size() && !answer.sets[i].name.empty(); ++i)
    sets += fmt::format("{}{}:{{{}}}", sets.empty() ? "" : ",", quoted(answer.sets[i].name),
                        fields(answer.sets[i], losses[i], ""));
  const std::string followed = fields(answer.sets[answer.followed], losses[answer.followed],
                                      fmt::format(",\"tokens\":{}", counters.tokens));
  fmt::print("{{\"step\":{},{},\"recipe\":{}{}{}{}}}\n", counters.step, followed, quoted(answer.recipe),
             answer.saved_recipe.empty() ? "" : fmt::format(",\"checkpoint_recipe\":{}", quoted(answer.saved_recipe)),
             answer.weights == Taken::averages ? ",\"weights\":\"ema\"" : "",
             sets.empty() ? "" : fmt::format(",\"eval_sets\":{{{}}}", sets));
}

/// The checkpoint that the weights are of; none for a Hugging Face folder.
std::vector<std::filesystem::path> saved(const GivenWeights& given) {
  if (given.content_digest.empty()) return {};
  return {given.path};
}

std::string saved_recipe(const GivenWeights& given) {
  if (saved(given).empty()) return "";
  return recipe_text(config_at(given.config, given.counters.step).precision);
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
    const std::vector<double> evaluated = *training->evaluate();  // the same on all ranks
    const std::vector<float> losses(evaluated.begin(), evaluated.end());
    for (std::size_t i = 0; i < losses.size(); ++i)
      if (!std::isfinite(losses[i]))
        throw Error(Exit::numerical,
                    fmt::format("{}: the loss of these weights{} is {}", given.path.string(),
                                answer.sets[i].name.empty() ? "" : " on " + answer.sets[i].name,
                                std::isnan(losses[i]) ? "no number" : "infinite"));
    if (mpi.rank() != 0) return 0;
    (options.format == Format::json ? print_json : print_text)(given.counters, losses, answer);
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
    for (const Evaluated& set : evaluated_by(run)) told.push_back(doubt_text(set));
    if (!run.trained_copy.empty()) told.push_back("WARNING: " + run.trained_copy);
  });
  return problems;
}

/// Evaluates the windows of a deck.
int eval_deck(const EvalOptions& options, Mpi& mpi, Control& control) {
  Prepared run = prepare(options.deck, options.overrides, Task::evaluation, mpi, control);
  const RunConfig& config = run.deck.config;
  control.wait_at_most(config.comm.timeout());
  Problems problems;
  std::string path;
  attempt(problems, [&] {
    if (control.rank() == 0) path = chosen_step(options.checkpoint, options.step).string();
  });
  control.agree(problems);
  const GivenWeights given = open_weights(path, control, nullptr, options.weights);
  if (const std::size_t segment = segment_of(config, given.counters.step); segment != run.segment)
    plan_segment(run, segment, mpi, control);
  std::vector<std::string> told;
  control.agree(problems_with_evaluating(run, given, told));
  for (const std::string& line : told)
    if (mpi.rank() == 0 && !line.empty()) fmt::print(stderr, "{}\n", line);
  Answer answer{{}, followed_set(config), recipe_text(run.plan->config.precision), saved_recipe(given),
                options.weights};
  const std::vector<const CutCorpus*> corpora = run.evaluated();
  for (const Evaluated& set : evaluated_by(run))
    answer.sets.push_back({.name = set.name,
                           .extent = extent_text(set),
                           .windows = set.windows,
                           .kept = set.kept,
                           .tokens = set.tokens,
                           .bytes = target_bytes(run, *corpora[answer.sets.size()])});
  return evaluate_weights(options, run, given, run.batches(), answer, mpi, control);
}

/// Evaluates every token of a text but the first.
int eval_text(const EvalOptions& options, Mpi& mpi, Control& control) {
  Problems problems;
  std::string path;
  attempt(problems, [&] {
    if (control.rank() == 0) path = path_of_weights(options.deck, options.step);
  });
  control.agree(problems);
  const GivenWeights given = open_weights(path, control, nullptr, options.weights);
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
                           std::vector{CutTokens{measures.tokens, measures.windows}},
                           run.plan->ranks.world},
                          {.sets = {{.extent = fmt::format("{}, {} of {}, {}", counted(windows, "window"), tokens,
                                                           counted(tokens + 1, "token"),
                                                           counted(measures.bytes, "byte")),
                                     .windows = windows,
                                     .kept = windows,
                                     .tokens = tokens,
                                     .bytes = measures.bytes}},
                           .recipe = recipe_text(config.precision),
                           .saved_recipe = saved_recipe(given),
                           .weights = options.weights},
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
