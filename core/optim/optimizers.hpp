#pragma once
#include <memory>
#include <span>
#include <vector>

#include "core/config/sections/optimizer.hpp"
#include "core/device/device.hpp"
#include "core/optim/balance.hpp"

namespace tessera {

/// Makes the rules of a deck's `optimizer` for the buckets of a layout: AdamW for element-sharded ones, Muon for
/// whole-matrix ones, Balance for counted ones. Allocates. Local.
std::vector<std::unique_ptr<Rule>> rules_of(const OptimizerConfig& config, const BalanceSettings& balance,
                                            Device& device, const ParamRegistry& registry, const ParamLayout& layout,
                                            const Ranks& ranks);

/// Steps the fp32 masters of this rank's slices: a list of rules, each bucket with exactly one.
class Optimizers {
 public:
  /// Throws Error{internal} if a bucket of `layout` has no rule or several, or two rules share the name of a slot or of
  /// a counter.
  Optimizers(std::vector<std::unique_ptr<Rule>> rules, const ParamLayout& layout);

  /// Sets the state of a fresh run. Orders on `stream`. Local.
  void initialise(Stream& stream);

  /// Steps every rule on its buckets. `places.counters` holds the words of counters(), rule by rule. A skipped step
  /// changes neither masters nor state nor counters. Orders on `stream`. Local.
  Updated step(Stream& stream, Clipped&& gradients, const Masters& masters, const RulePlaces& places);

  /// The slots of every rule.
  void visit_state(const Rule::SlotVisitor& visit) const;

  /// Every rule's counters, with the values of a fresh run.
  const std::vector<RuleCounter>& counters() const { return counters_; }
  /// counters_of(): counters from their 64-bit words, in order. words_of(): words from counters in any order; throws
  /// Error{internal} unless they are the rules' counters by name and type.
  std::vector<RuleCounter> counters_of(std::span<const std::uint64_t> words) const;
  std::vector<std::uint64_t> words_of(const std::vector<RuleCounter>& counters) const;

 private:
  void require_one_rule_each(const ParamLayout& layout) const;
  void require_own_names() const;

  std::vector<std::unique_ptr<Rule>> rules_;
  std::vector<RuleCounter> counters_;
  std::vector<std::int64_t> counts_;  ///< number of counters of each rule
};

}  // namespace tessera
