#include "app/training/given_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "app/training/preparation.hpp"
#include "io/convert/hf_folder.hpp"
#include "io/metrics/console.hpp"

namespace tessera {
namespace {

/// A Hugging Face folder, under the names and in the shapes of a checkpoint.
class ForeignWeights final : public TensorSource {
 public:
  explicit ForeignWeights(const std::filesystem::path& folder)
      : name_(folder.string()), reader_(read_hf_folder(folder)) {
    for (const StateTensor& tensor : facts().tensors) {
      places_[tensor.path()] = tensors_.size();
      tensors_.push_back({tensor.slot,
                          tensor.name,
                          tensor.shape,
                          tensor.type,
                          axes_of(tensor.role, tensor.shape.rank()),
                          0,
                          tensor.tied_to,
                          {{0, tensor.shape.elements(), 0}}});
    }
  }
  const ModelFacts& facts() const { return reader_->facts(); }

  std::string name() const override { return name_; }
  const std::vector<StoredTensor>& tensors() const override { return tensors_; }
  bool has_digests() const override { return false; }
  void read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const override {
    reader_->read(places_.at(tensor.path()), first, count, to);
  }

 private:
  std::string name_;
  std::unique_ptr<ModelReader> reader_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t> places_;
};

GivenWeights foreign_weights(const std::filesystem::path& folder, Control& control) {
  GivenWeights given;
  Problems problems;
  attempt(problems, [&] {
    auto foreign = std::make_unique<ForeignWeights>(folder);
    const ModelFacts facts = foreign->facts();
    RunConfig config;
    config.model = facts.model;
    config.data.kind = DataKind::tokens;
    const auto narrow = [](const StateTensor& tensor) { return tensor.type == DType::bf16; };
    config.precision.compute = std::ranges::all_of(facts.tensors, narrow) ? Compute::bf16 : Compute::fp32;
    config.sample.prompt.clear();
    given = {folder, std::move(foreign), config, facts.counters, ""};
  });
  control.agree(problems);
  return given;
}

GivenWeights saved_weights(const std::filesystem::path& folder, Control& control, const hdf5::Parallel* parallel) {
  auto checkpoint = std::make_unique<Checkpoint>(folder, control, parallel);
  const Manifest manifest = checkpoint->manifest();
  RunConfig config;
  Problems problems;
  attempt(problems, [&] { config = parse_saved_deck(checkpoint->deck(), (folder / deck_file).string()).config; });
  control.agree(problems);
  return {folder, std::move(checkpoint), config, manifest.counters, manifest.content_digest};
}

/// Model keys whose difference the tensors show, or that they survive: the length of sequences, unless positions are
/// learned, which is a tensor.
constexpr const char* seen_in_tensors[] = {"model.layers", "model.hidden",    "model.seq_len", "model.ffn",
                                           "model.vocab",  "model.tied_head", "model.bias",    "model.moe.experts",
                                           "model.qk_norm", "model.qkv_bias"};

std::vector<std::string> other_keys(const ModelConfig& given, const RunConfig& wanted) {
  RunConfig as_given = wanted;
  as_given.model = given;
  std::vector<std::string> lines;
  for (const KeyChange& change : changed_keys(as_given, wanted))
    if (change.restart != Restart::may_change &&
        std::ranges::find(seen_in_tensors, change.key) == std::end(seen_in_tensors))
      lines.push_back(fmt::format("key: {} was {}, is {} in the deck", change.key, change.before, change.now));
  return lines;
}

}  // namespace

GivenWeights open_weights(const std::string& path, Control& control, const hdf5::Parallel* parallel) {
  Problems problems;
  std::string folder;
  bool foreign = false;
  if (control.rank() == 0)
    attempt(problems, [&] {
      foreign = is_hf_folder(path);
      folder = std::filesystem::absolute(foreign ? std::filesystem::path(path) : find_checkpoint(path)).string();
    });
  control.agree(problems);
  folder = control.broadcast(folder);
  return control.max(foreign) ? foreign_weights(folder, control) : saved_weights(folder, control, parallel);
}

namespace {

std::vector<StateTensor> weights_of(const RunPlan& plan) {
  StateDict state;
  state.add("model", plan.registry);
  return state.tensors;
}

}  // namespace

Problems problems_with_weights(const GivenWeights& given, const RunPlan& plan, const Fit& fit) {
  std::vector<std::string> lines = other_keys(given.config.model, plan.config);
  for (std::string& line : misfits(*given.source, weights_of(plan), fit)) lines.push_back(std::move(line));
  Problems problems;
  if (!lines.empty())
    problems.add(Exit::file, fmt::format("{}: is of another model: {}\n  {}", given.source->name(),
                                         counted(std::ssize(lines), "difference"), fmt::join(lines, "\n  ")));
  return problems;
}

Problems problems_with_starting(const GivenWeights& given, const Deck& deck, const RunPlan& plan) {
  const CheckpointConfig& wish = deck.config.checkpoint;
  const std::vector<StateTensor> weights = weights_of(plan);
  Problems problems;
  for (const std::string& name : wish.init_missing)
    if (std::ranges::find(weights, name, &StateTensor::name) == weights.end())
      problems.add(Exit::deck,
                   deck.provenance.located({{"checkpoint.init_missing"}, name + " is no weight of the model"}));
  const Fit::Extra extra = wish.init_ignore_extra ? Fit::Extra::ignored : Fit::Extra::refused;
  problems.add(problems_with_weights(given, plan, {wish.init_missing, extra}));
  return problems;
}

}  // namespace tessera
