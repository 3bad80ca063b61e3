#include "core/optim/optimizers.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "core/optim/adamw.hpp"
#include "core/optim/muon.hpp"

namespace tessera {

std::vector<std::unique_ptr<Rule>> rules_of(const OptimizerConfig& config, const BalanceSettings& balance,
                                            Device& device, const ParamRegistry& registry, const ParamLayout& layout,
                                            const Ranks& ranks) {
  const auto owned_as = [&](OwnerKind kind) {
    std::vector<BucketId> buckets;
    for (BucketId b : layout.buckets().ids())
      if (layout.buckets()[b].key.owner == kind) buckets.push_back(b);  // mutation: owner_of_the_groups_first_bucket
    return buckets;
  };
  std::vector<std::unique_ptr<Rule>> rules;
  rules.push_back(std::make_unique<AdamW>(device, registry, layout, ranks, owned_as(OwnerKind::element_sharded),
                                          AdamWCoefficients{config.beta1, config.beta2, config.eps},
                                          config.weight_decay, type_of(config.moments)));
  if (std::vector<BucketId> whole = owned_as(OwnerKind::whole_matrix); !whole.empty())
    rules.push_back(std::make_unique<Muon>(device, registry, layout, ranks, std::move(whole), config));
  if (std::vector<BucketId> counted = owned_as(OwnerKind::counted); !counted.empty())
    rules.push_back(std::make_unique<Balance>(device, registry, layout, ranks, std::move(counted), balance));
  return rules;
}

Optimizers::Optimizers(std::vector<std::unique_ptr<Rule>> rules, const ParamLayout& layout) : rules_(std::move(rules)) {
  for (const auto& rule : rules_) {
    const auto before = std::ssize(counters_);
    rule->visit_counters([&](const RuleCounter& counter) { counters_.push_back(counter); });
    counts_.push_back(std::ssize(counters_) - before);
  }
  require_one_rule_each(layout);
  require_own_names();
}

void Optimizers::require_one_rule_each(const ParamLayout& layout) const {
  IndexedBy<BucketId, int> rules_of_bucket(layout.buckets().size());
  for (const auto& rule : rules_)
    for (BucketId b : rule->buckets()) ++rules_of_bucket[b];
  for (BucketId b : rules_of_bucket.ids())
    if (rules_of_bucket[b] != 1)
      throw Error(Exit::internal, "Optimizers: bucket " + std::to_string(b.value) + " has " +
                                      std::to_string(rules_of_bucket[b]) + " rules; each needs exactly one");
}

void Optimizers::require_own_names() const {
  std::set<std::string> names;
  const auto add = [&](const std::string& path) {
    if (!names.insert(path).second) throw Error(Exit::internal, "Optimizers: two rules have " + path);
  };
  visit_state([&](const StateSlot& slot) { add(std::string("/") + slot.name); });
  // A rule's counter must not have the name of one of the run's own either.
  StateCounters run;
  run.rules = counters_;
  StateCounters::visit(run, [&](const char* path, auto) { add(path); });
}

void Optimizers::initialise(Stream& stream) {
  for (const auto& rule : rules_) rule->initialise(stream);
}

Updated Optimizers::step(Stream& stream, Clipped&& gradients, const Masters& masters, const RulePlaces& places) {
  std::int64_t first = 0;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    rules_[i]->step(stream, gradients, masters, {places.rate, places.counters.flat(first, counts_[i])});
    first += counts_[i];
  }
  return std::move(gradients).updated();
}

void Optimizers::visit_state(const Rule::SlotVisitor& visit) const {
  for (const auto& rule : rules_) rule->visit_state(visit);
}

std::vector<RuleCounter> Optimizers::counters_of(std::span<const std::uint64_t> words) const {
  require(words.size() == counters_.size(), "Optimizers", "there is a word for each counter");
  std::vector<RuleCounter> counters;
  for (std::size_t i = 0; i < words.size(); ++i) counters.push_back(counters_[i].with_bits(words[i]));
  return counters;
}

std::vector<std::uint64_t> Optimizers::words_of(const std::vector<RuleCounter>& counters) const {
  require(counters.size() == counters_.size(), "Optimizers", "every counter of the rules has a value, and no other");
  std::vector<std::uint64_t> words;
  for (const RuleCounter& own : counters_) {
    const auto found = std::ranges::find(counters, own.name, &RuleCounter::name);
    require(found != counters.end() && found->value.index() == own.value.index(), "Optimizers",
            "a counter of the rules has no value of its type");
    words.push_back(found->bits());
  }
  return words;
}

}  // namespace tessera
