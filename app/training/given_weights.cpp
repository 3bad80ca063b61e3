#include "app/training/given_weights.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "app/training/preparation.hpp"

namespace tessera {
namespace {

GivenWeights opened(const std::filesystem::path& folder) {
  auto checkpoint = std::make_unique<Checkpoint>(folder);
  const Manifest manifest = checkpoint->manifest();
  Problems unreadable;
  const Deck deck = parse_deck(checkpoint->deck(), (folder / deck_file).string(), {}, unreadable);
  Problems problems;
  for (const Problem& problem : unreadable.list()) problems.add(Exit::file, problem.text);
  problems.raise();
  return {folder, std::move(checkpoint), deck.config.model, manifest.counters, manifest.content_digest};
}

/// Model keys whose difference the tensors show, or that they survive: the length of sequences, unless positions are
/// learned, which is a tensor.
constexpr const char* seen_in_tensors[] = {"model.layers", "model.hidden",    "model.seq_len", "model.ffn",
                                           "model.vocab",  "model.tied_head", "model.bias",    "model.moe.experts"};

std::vector<std::string> other_keys(const ModelConfig& given, const RunConfig& wanted) {
  RunConfig as_given = wanted;
  as_given.model = given;
  std::vector<std::string> lines;
  for (const KeyChange& change : changed_keys(as_given, wanted))
    if (std::ranges::find(seen_in_tensors, change.key) == std::end(seen_in_tensors))
      lines.push_back(fmt::format("key: {} was {}, the deck has {}", change.key, change.before, change.now));
  return lines;
}

}  // namespace

GivenWeights open_weights(const std::string& path, Control& control) {
  Problems problems;
  std::string folder;
  if (control.rank() == 0) attempt(problems, [&] { folder = std::filesystem::absolute(find_checkpoint(path)); });
  control.agree(problems);
  folder = control.broadcast(folder);
  GivenWeights given;
  attempt(problems, [&] { given = opened(folder); });
  control.agree(problems);
  return given;
}

namespace {

std::vector<StateTensor> weights_of(const RunPlan& plan) {
  StateDict state;
  state.add("model", plan.registry, plan.layout, 0, {});
  return state.tensors;
}

}  // namespace

Problems against(const GivenWeights& given, const RunPlan& plan, const Fit& fit) {
  std::vector<std::string> lines = other_keys(given.model, plan.config);
  for (std::string& line : misfits(*given.source, weights_of(plan), fit)) lines.push_back(std::move(line));
  Problems problems;
  if (!lines.empty())
    problems.add(Exit::file, fmt::format("{}: is of another model: {} differences\n  {}", given.source->name(),
                                         lines.size(), fmt::join(lines, "\n  ")));
  return problems;
}

Problems against_starting(const GivenWeights& given, const Deck& deck, const RunPlan& plan) {
  const CheckpointConfig& wish = deck.config.checkpoint;
  const std::vector<StateTensor> weights = weights_of(plan);
  Problems problems;
  for (const std::string& name : wish.init_missing)
    if (std::ranges::find(weights, name, &StateTensor::name) == weights.end())
      problems.add(Exit::deck,
                   deck.provenance.located({{"checkpoint.init_missing"}, name + " is no weight of the model"}));
  problems.add(
      against(given, plan, {wish.init_missing, wish.init_ignore_extra ? Fit::Extra::ignored : Fit::Extra::refused}));
  return problems;
}

}  // namespace tessera
