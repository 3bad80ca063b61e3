#include "core/config/restart.hpp"

#include <map>

#include "core/config/config.hpp"
#include "core/config/value.hpp"
#include "core/config/visitor.hpp"

namespace tessera {
namespace {

/// A key's value as a deck writes it, and what a resumed run may do with it.
struct Kept {
  std::string text;
  Restart restart;
};

/// Collects every key whose value a resumed run must keep, unless asked to change it, and those that may be told of.
class Fixed : public ConfigVisitor<Fixed> {
 public:
  std::map<std::string, Kept> values;

  template <class T, class Rule> void value(const Key& key, const T& member, const Rule&) {
    if (key.restart != Restart::contents && key.restart != Restart::may_change && filled(member))
      values[key.path] = {deck_text(member), key.restart};
  }
};

std::map<std::string, Kept> fixed_of(const RunConfig& config) {
  Fixed visitor;
  RunConfig::visit(config, visitor);
  return visitor.values;
}

}  // namespace

// Order rank has the sums of order batch where a rank has one micro-batch. So it has where no gradient lies whole on a
// rank: each micro-batch is reduced onto the sum of those before.
SumOrder sum_order(const RunConfig& config, std::int64_t ranks) {
  const bool one_each = config.batch.global <= ranks * config.batch.micro;
  const bool all_shared = config.sharding == Sharding::full &&
                          config.parallel.sharding_group.of(ranks) > config.parallel.expert;
  const bool by_batch = config.reduce.order == ReduceOrder::batch || one_each || all_shared;
  return {by_batch ? 0 : ranks};  // mutation: sums_of_ranks_are_alike
}

std::vector<KeyChange> changed_keys(const Launched& before, const Launched& now) {
  std::map<std::string, Kept> old = fixed_of(before.config), values = fixed_of(now.config);
  const bool other_sums = sum_order(before.config, before.ranks) != sum_order(now.config, now.ranks);
  std::vector<KeyChange> changes;
  for (auto& [key, value] : old) values.try_emplace(key, Kept{"absent", value.restart});
  for (const auto& [key, value] : values) {
    const Kept& was = old.try_emplace(key, Kept{"absent", value.restart}).first->second;
    const bool told = value.restart != Restart::told_of_sums || other_sums;
    if (was.text != value.text && told) changes.push_back({key, was.text, value.text, value.restart});
  }
  if (sum_order(now.config, before.ranks) != sum_order(now.config, now.ranks))
    changes.push_back({"ranks", std::to_string(before.ranks), std::to_string(now.ranks), Restart::told_of_sums});
  return changes;
}

std::string keep_it_text(const std::string& key, Restart restart) {
  const std::string keep = "a resumed run must keep it";
  return restart == Restart::on_request ? keep + ", unless `train --allow-change " + key + "` lets it change" : keep;
}

std::vector<Finding> changes_at_restart(const RunConfig& saved, const RunConfig& now,
                                        const std::set<std::string>& asked) {
  std::vector<Finding> found;
  constexpr std::int64_t any = 1;  // no number of ranks must be kept
  for (const auto& [key, before, value, restart] : changed_keys({saved, any}, {now, any}))
    if (must_keep(restart) && !asked.contains(key))
      found.push_back({{key},
                       "is " + value + ", and was " + before +
                           " when the checkpoint was saved: " + keep_it_text(key, restart)});
  return found;
}

}  // namespace tessera
