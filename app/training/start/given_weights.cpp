#include "app/training/start/given_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "app/training/start/evaluated.hpp"
#include "app/training/start/known_tokenizer.hpp"
#include "app/training/start/preparation.hpp"
#include "core/config/restart.hpp"
#include "io/convert/hf_companions.hpp"
#include "io/convert/hf_folder.hpp"
#include "io/files/access.hpp"
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

GivenWeights foreign_weights(const std::filesystem::path& folder) {
  auto foreign = std::make_unique<ForeignWeights>(folder);
  const ModelFacts facts = foreign->facts();
  RunConfig config;
  config.model = facts.model;
  config.data.kind = DataKind::tokens;
  config.precision.compute = compute_of(facts.tensors);
  config.sample.prompt.clear();
  return {folder, std::move(foreign), config, facts.counters, "", "", facts.window, facts.told};
}

GivenWeights saved_weights(const std::filesystem::path& folder, std::unique_ptr<Checkpoint> checkpoint, Taken taken) {
  const Manifest manifest = checkpoint->manifest();
  const RunConfig config = parse_saved_deck(checkpoint->deck(), (folder / deck_file).string()).config;
  std::unique_ptr<TensorSource> source;
  if (taken == Taken::averages) source = averages_of(std::move(checkpoint));
  else source = std::move(checkpoint);
  return {folder, std::move(source), config, manifest.counters, manifest.content_digest, manifest.corpus_hash, 0, ""};
}

/// The folder that a path means: of Hugging Face, or of a step.
std::filesystem::path folder_of_weights(const std::string& path) {
  return std::filesystem::absolute(find_weights(path));
}

/// Model keys whose difference the tensors show, or that they survive: the length of sequences, unless positions are
/// learned, which is a tensor.
constexpr const char* seen_in_tensors[] = {"model.layers", "model.hidden",    "model.seq_len", "model.ffn",
                                           "model.vocab",  "model.tied_head", "model.bias",    "model.moe.experts",
                                           "model.qk_norm", "model.qkv_bias", "model.moe.ffn", "model.moe.bias",
                                           "model.moe.first_dense", "model.moe.every", "model.moe.shared_ffn",
                                           "model.moe.shared_gate", "model.moe.balance_over"};

std::vector<std::string> other_keys(const ModelConfig& given, const RunConfig& wanted) {
  RunConfig as_given = wanted;
  as_given.model = given;
  std::vector<std::string> lines;
  for (const KeyChange& change : changed_keys({as_given, 1}, {wanted, 1}))
    if (must_keep(change.restart) &&
        std::ranges::find(seen_in_tensors, change.key) == std::end(seen_in_tensors))
      lines.push_back(fmt::format("key: {} was {}, is {} in the deck", change.key, change.before, change.now));
  return lines;
}

}  // namespace

std::string path_of_weights(const std::string& model, Chosen step) {
  if (entry_at(model) != Entry::file) return chosen_step(model, step).string();
  // Its tokenizer, from which its vocabulary might come, need not be there.
  const Deck deck = checked_deck(model, {{"data.tokenizer", ""}, {"sample.tokens", "0"}, {"model.vocab", "256"}});
  return chosen_step(deck.config.checkpoint.dir.get(), step).string();
}

GivenWeights open_weights(const std::string& path, Control& control, const hdf5::Parallel* parallel, Taken taken) {
  Problems problems;
  std::string folder;
  bool foreign = false;
  if (control.rank() == 0)
    attempt(problems, [&] {
      foreign = is_hf_folder(path);
      folder = folder_of_weights(path).string();
    });
  control.agree(problems);
  folder = control.broadcast(folder);
  foreign = control.max(foreign) != 0;
  std::unique_ptr<Checkpoint> checkpoint;
  if (!foreign) checkpoint = std::make_unique<Checkpoint>(folder, control, parallel);
  GivenWeights given;
  attempt(problems, [&] {
    if (foreign && taken == Taken::averages)
      throw Error(Exit::file, folder + ": a Hugging Face folder holds no averages beside its weights");
    given = foreign ? foreign_weights(folder) : saved_weights(folder, std::move(checkpoint), taken);
  });
  control.agree(problems);
  if (control.rank() == 0 && !given.told.empty()) fmt::print(stderr, "{}\n", given.told);
  return given;
}

GivenWeights open_weights(const std::string& path) {
  const std::filesystem::path folder = folder_of_weights(path);
  if (is_hf_folder(folder)) return foreign_weights(folder);
  return saved_weights(folder, std::make_unique<Checkpoint>(folder), Taken::trained);
}

std::optional<std::string> GivenWeights::companion(const char* name) const {
  return is_hf_folder(path) ? hf_companion(path, name) : companion_in(path, name);
}
Companions GivenWeights::companions() const { return is_hf_folder(path) ? hf_companions(path) : companions_in(path); }

namespace {

std::vector<StateTensor> weights_of(const RunPlan& plan) {
  StateDict state;
  state.add("model", plan.registry);
  return state.tensors;
}

}  // namespace

Problems problems_with_weights(const GivenWeights& given, const RunPlan& plan, const Fit& fit) {
  std::vector<std::string> lines = other_keys(given.config.model, plan.config);
  if (given.window > 0 && plan.config.model.seq_len > given.window)
    lines.push_back(fmt::format("key: model.seq_len: {} is longer than its attention windows of {}, within which the "
                                "models are the same",
                                plan.config.model.seq_len, given.window));
  for (std::string& line : misfits(*given.source, weights_of(plan), fit)) lines.push_back(std::move(line));
  Problems problems;
  if (!lines.empty())
    problems.add(Exit::file, fmt::format("{}: is of another model: {}\n  {}", given.source->name(),
                                         counted(std::ssize(lines), "difference"), fmt::join(lines, "\n  ")));
  return problems;
}

namespace {

/// Adds problems with names that a key of init_from gives; `suits` says which weights it may name.
template <class Suits>
void check_names(const Deck& deck, const char* key, const std::vector<std::string>& names,
                 const std::vector<StateTensor>& weights, const Suits& suits, Problems& problems) {
  for (const std::string& name : names) {
    const auto found = std::ranges::find(weights, name, &StateTensor::name);
    const std::string why = found == weights.end() ? " is no weight of the model" : suits(*found);
    if (!why.empty()) problems.add(Exit::deck, deck.provenance.located({{key}, name + why}));
  }
}

/// Whether a weight has a row a token or position.
bool has_rows(const StateTensor& weight) {
  return weight.role == Role::embedding || weight.role == Role::head || weight.role == Role::position;
}

/// Calls `grown(weight, its rows in the source)` for each weight that has a row a token or position, and more of them
/// than the source.
template <class Grown>
void for_grown(const GivenWeights& given, const std::vector<StateTensor>& weights, const Grown& grown) {
  for (const StateTensor& weight : weights)
    for (const StoredTensor& there : given.source->tensors())
      if (has_rows(weight) && there.slot == weight.slot && there.name == weight.name && there.shape.rank() == 2 &&
          there.shape[0] < weight.shape[0] && there.shape[1] == weight.shape[1])
        grown(weight, there.shape[0]);
}

/// Says which rows of a weight are the source's, for each that grows.
void tell_rows(const GivenWeights& given, const std::vector<StateTensor>& weights, GivenStart& start) {
  for_grown(given, weights, [&](const StateTensor& weight, std::int64_t rows) {
    start.told.push_back(fmt::format("{}: the first {} of {} rows are those of the weights, the rest is drawn",
                                     weight.name, rows, weight.shape[0]));
  });
}

/// Names the weights that fit once checkpoint.init_rows names them.
void advise_rows(const GivenWeights& given, const std::vector<StateTensor>& weights, GivenStart& start) {
  std::vector<std::string> names;
  for_grown(given, weights, [&](const StateTensor& weight, std::int64_t) { names.push_back(weight.name); });
  if (!names.empty())
    start.problems.add(Exit::file, fmt::format("checkpoint.init_rows: [{}] takes the rows that are there, and the "
                                               "rest is drawn",
                                               fmt::join(names, ", ")));
}

/// Compares the tokenizers and gives the run the companions of the weights, unless these speak of other tokens.
void take_tokenizer(const GivenWeights& given, const Prepared& run, GivenStart& start) {
  Companions companions = given.companions();
  const KnownTokenizer theirs = tokenizer_of(given), ours = tokenizer_of(run);
  const std::string other = other_tokens(theirs, ours, start.told);
  if (other.empty()) {
    start.companions = std::move(companions);
    if (std::string line = left_behind(given.path); !line.empty()) start.told.push_back(std::move(line));
    return;
  }
  if (!run.deck.config.checkpoint.init_other_tokenizer) {
    start.problems.add(
        Exit::file,
        fmt::format("{}: these weights were trained with another tokenizer than {}: {}. Train with theirs, or say "
                    "checkpoint.init_other_tokenizer: true, and their rows stand for other tokens",
                    theirs.name, ours.name, other));
    return;
  }
  std::string left;
  for (const auto& [name, text] : companions)
    if (name != tokenizer_file) left += (left.empty() ? "" : ", ") + name;
  start.told.push_back(fmt::format("{}: these weights were trained with another tokenizer than {} (allowed): {}{}",
                                   theirs.name, ours.name, other,
                                   left.empty() ? "" : "; not taken along, since they speak of its tokens: " + left));
}

}  // namespace

GivenStart start_from(const GivenWeights& given, const Prepared& run) {
  const CheckpointConfig& wish = run.deck.config.checkpoint;
  const std::vector<StateTensor> weights = weights_of(*run.plan);
  GivenStart start;
  check_names(run.deck, "checkpoint.init_missing", wish.init_missing, weights,
              [](const StateTensor&) { return std::string(); }, start.problems);
  check_names(run.deck, "checkpoint.init_rows", wish.init_rows, weights, [](const StateTensor& weight) {
    return std::string(has_rows(weight) ? ""
                                        : " has no row a token or position: embed.tokens, head.weight and "
                                          "embed.positions do");
  }, start.problems);
  const Fit::Extra extra = wish.init_ignore_extra ? Fit::Extra::ignored : Fit::Extra::refused;
  const Problems misfitting = problems_with_weights(given, *run.plan, {wish.init_missing, wish.init_rows, extra});
  if (misfitting.empty()) tell_rows(given, weights, start);
  if (std::string line = overlap_text(given, run); !line.empty()) start.told.push_back(std::move(line));
  start.problems.add(misfitting);
  if (!misfitting.empty() && wish.init_rows.empty()) advise_rows(given, weights, start);
  attempt(start.problems, [&] { take_tokenizer(given, run, start); });
  return start;
}

}  // namespace tessera
