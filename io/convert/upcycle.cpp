#include "io/convert/upcycle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <sstream>

#include "core/model/gpt.hpp"
#include "core/optim/adamw.hpp"
#include "io/convert/hf_names.hpp"
#include "io/deck/deck.hpp"
#include "kernels/random/normal.hpp"
#include "kernels/random/random.hpp"

namespace tessera {
namespace {

/// The name of the dense tensor that each expert copies: layers.3.mlp.down.weight of layers.3.moe.experts.down.weight.
std::string copied_name(const std::string& name) {
  constexpr std::string_view experts = ".moe.experts.";
  const std::size_t at = name.find(experts);
  return at == std::string::npos ? name : name.substr(0, at) + ".mlp." + name.substr(at + experts.size());
}

/// The number that fill_normal() gives an index, on the host.
double normal_at(const RandomKey& key, std::uint64_t index) {
  const PhiloxBlock counter{{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                             static_cast<std::uint32_t>(key.stream), static_cast<std::uint32_t>(key.stream >> 32)}};
  return normal_from(philox(counter, key.seed));
}

MoeConfig mixture_of(const Upcycling& how) {
  MoeConfig moe;
  moe.experts = how.experts;
  moe.top_k = how.top_k;
  moe.first_dense = how.first_dense;
  moe.every = how.every;
  moe.renormalize = true;  // whatever the router says, weights add up to 1
  return moe;
}

class Upcycled final : public ModelReader {
 public:
  Upcycled(std::unique_ptr<ModelReader> dense, const Upcycling& how)
      : dense_(std::move(dense)), facts_(dense_->facts()), seed_(how.seed) {
    Problems problems;
    const auto refuse = [&](const std::string& what) {
      problems.add(Exit::file, facts_.origin.parent + ": " + what);
    };
    if (facts_.model.moe) refuse("model.moe: is a mixture of experts already, and --upcycle takes a dense model");
    if (facts_.model.bias)
      refuse("model.bias: true: experts have no biases, and those of the feed-forward layers would be lost");
    problems.raise();
    describe(mixture_of(how), problems);
    for (std::size_t i = 0; i < dense_->facts().tensors.size(); ++i)
      if (const StateTensor& tensor = dense_->facts().tensors[i]; tensor.slot == "model")
        sources_[tensor.name] = i;
    facts_.tensors = canonical_weights(facts_.model);
    for (StateTensor& tensor : facts_.tensors) {
      const auto source = sources_.find(copied_name(tensor.name));
      if (source != sources_.end()) tensor.type = dense_->facts().tensors[source->second].type;
    }
    collect_starts();
  }

  const ModelFacts& facts() const override { return facts_; }

  void read(std::size_t index, std::int64_t first, std::int64_t count, void* to) override {
    const StateTensor& tensor = facts_.tensors[index];
    const auto source = sources_.find(copied_name(tensor.name));
    if (source == sources_.end()) return draw(tensor, first, count, static_cast<float*>(to));
    const std::int64_t own = dense_->facts().tensors[source->second].shape.elements(), size = size_of(tensor.type);
    for (auto* at = static_cast<std::byte*>(to); count > 0;) {
      const std::int64_t begin = first % own, some = std::min(count, own - begin);
      dense_->read(source->second, begin, some, at);
      first += some;
      if (first == own && source->first != tensor.name) dense_->finish(source->second);  // before it is read again
      count -= some;
      at += some * size;
    }
  }

  /// What experts copy has been verified when the first of them was read.
  void finish(std::size_t index) override {
    const std::string& name = facts_.tensors[index].name;
    if (const auto source = sources_.find(name); source != sources_.end()) dense_->finish(source->second);
  }

 private:
  /// The mixture's config, in the facts and in the deck that goes with the weights.
  void describe(const MoeConfig& moe, Problems& problems) {
    Deck deck = parse_saved_deck(facts_.origin.deck, facts_.origin.parent);
    deck.config.model.moe = moe;
    derive(deck.config);
    for (const Finding& finding : check(deck.config))
      problems.add(Exit::usage, "--upcycle: " + finding.keys.front() + ": " + finding.text);
    problems.raise();
    facts_.model = deck.config.model;
    facts_.origin.deck = fmt::format("# Made from {}, a dense model, whose feed-forward layers the experts copy.\n",
                                     facts_.origin.parent) +
                         resolved_text(deck);
    facts_.origin.model_sha256 = model_fingerprint(facts_.model);
    facts_.counters = {};
    facts_.counters.seed = deck.config.run.seed;
    facts_.counters.rules = fresh_adamw_counters();
  }

  void collect_starts() {
    RunConfig config;
    config.model = facts_.model;
    ParamRegistry registry;
    const Gpt gpt(registry, GptShape::from(config));
    for (const ParamSpec& spec : registry.specs()) starts_[spec.canonical.name] = spec.start;
  }

  /// Draws a tensor that the dense model lacks, a router's.
  void draw(const StateTensor& tensor, std::int64_t first, std::int64_t count, float* to) const {
    const RandomKey key = random_key(seed_, "init", tensor.name, 0);
    const double deviation = starts_.at(tensor.name).deviation;
    for (std::int64_t i = 0; i < count; ++i)
      to[i] = static_cast<float>(deviation * normal_at(key, static_cast<std::uint64_t>(first + i)));
  }

  std::unique_ptr<ModelReader> dense_;
  ModelFacts facts_;
  std::uint64_t seed_;
  std::map<std::string, std::size_t> sources_;  ///< index of each of the dense model's weights
  std::map<std::string, Start> starts_;
};

}  // namespace

Upcycling read_upcycling(const std::string& text) {
  Upcycling how;
  std::istringstream words(text + ',');  // a comma at the text's end leaves an empty word, which is refused
  std::set<std::string> given;
  for (std::string word; std::getline(words, word, ',');) {
    const std::size_t equal = word.find('=');
    const std::string key = word.substr(0, equal), value = equal == std::string::npos ? "" : word.substr(equal + 1);
    std::int64_t number = -1;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const std::pair<const char*, std::int64_t*> known[] = {{"experts", &how.experts}, {"top_k", &how.top_k},
                                                           {"first_dense", &how.first_dense}, {"every", &how.every}};
    const auto found = std::ranges::find(known, key, [](const auto& one) { return std::string(one.first); });
    const bool sound = error == std::errc() && end == value.data() + value.size() && number >= 0;
    if (!sound || (found == std::end(known) && key != "seed"))
      throw Error(Exit::usage, fmt::format("--upcycle: \"{}\": takes experts=N,top_k=N, and first_dense=N, every=N and "
                                           "seed=N, separated by commas",
                                           word));
    if (!given.insert(key).second)
      throw Error(Exit::usage, fmt::format("--upcycle: \"{}\": {} is there twice: give each number once", text, key));
    if (key == "seed")
      how.seed = static_cast<std::uint64_t>(number);
    else
      *found->second = number;
  }
  if (how.experts < 1 || how.top_k < 1 || how.every < 1)
    throw Error(Exit::usage, fmt::format("--upcycle: \"{}\": experts, top_k and every are at least 1: "
                                         "--upcycle experts=8,top_k=2",
                                         text));
  return how;
}

std::unique_ptr<ModelReader> upcycled(std::unique_ptr<ModelReader> dense, const Upcycling& how) {
  return std::make_unique<Upcycled>(std::move(dense), how);
}

}  // namespace tessera
