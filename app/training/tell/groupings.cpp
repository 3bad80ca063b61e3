#include "app/training/tell/groupings.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/config/divisors.hpp"
#include "io/metrics/console.hpp"

namespace tessera {
namespace {

std::string text_of(double bytes) { return bytes_text(static_cast<std::int64_t>(bytes)); }

}  // namespace

std::vector<Grouping> groupings(const RunConfig& config, int ranks, int hosts) {
  std::vector<Grouping> all;
  for (std::int64_t of_group : divisors(ranks)) {
    if (of_group % config.parallel.expert != 0) continue;
    RunConfig asked = config;
    asked.parallel.sharding_group = of_group;
    const RunPlan plan = resolve_largest(asked, ranks);
    all.push_back({of_group, total(plan.memory), most_received_over(plan, hosts)});
  }
  return all;
}

std::string groupings_text(const std::vector<Grouping>& all, std::int64_t memory) {
  std::string text = "sharding_group: memory of the rank that needs most; a step's bytes from its host, from others\n";
  const Grouping* least = nullptr;
  const auto cost = [](const Grouping& one) { return std::pair(one.received.across, one.memory); };
  for (const Grouping& one : all) {
    const bool fits = memory == 0 || one.memory <= memory;
    text += fmt::format("  {:>5}  {:>10}  {:>10}  {:>10}{}\n", one.ranks, bytes_text(one.memory),
                        text_of(one.received.inside), text_of(one.received.across), fits ? "" : "  does not fit");
    if (fits && (!least || cost(one) < cost(*least))) least = &one;
  }
  if (!least) return text + "  none fits\n";
  return text + fmt::format("  parallel.sharding_group {} brings least from other hosts{}\n", least->ranks,
                            memory > 0 ? " of those that fit" : "");
}

std::string sharding_text(const RunPlan& plan) {
  const int groups = plan.ranks.sharding.size;
  if (groups == 1) return "";
  const Received received = most_received_over(plan, groups);
  return fmt::format("sharded:  in {} of {}: a rank receives {} a step from its own group and {} from others\n",
                     counted(groups, "group"), counted(plan.ranks.world.size / groups, "rank"),
                     text_of(received.inside), text_of(received.across));
}

}  // namespace tessera
