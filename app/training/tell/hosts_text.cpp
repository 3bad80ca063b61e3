#include "app/training/tell/hosts_text.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "core/params/labels.hpp"
#include "io/metrics/console.hpp"

namespace tessera {
namespace {

/// Whether this rank receives in an operation from rank `other`.
bool receives_from(const RunPlan& plan, const CollectiveCost& cost, const Ranks& other) {
  const Ranks& own = plan.ranks;
  if (cost.group < 0)  // of all ranks, but for rows of an expert group
    return cost.collective != Collective::exchange_rows || other.expert_data == own.expert_data;
  const ProcessGroup processes = plan.layout.groups()[GroupId{cost.group}].processes;
  const RankIn here = own.of(processes, Level::inside), there = other.of(processes, Level::inside);
  const bool same_experts = processes == ProcessGroup::dense || other.experts == own.experts;
  if (cost.label != label::running_sums && cost.label != label::shards)
    return same_experts && other.sharding == own.sharding;
  if (!same_experts || !(there == here)) return false;  // across sharding groups: ranks of one number
  switch (cost.collective) {
    case Collective::pass_on: return other.sharding.rank + 1 == own.sharding.rank;
    case Collective::exchange_rows: return other.sharding.rank + 1 == own.sharding.size;
    default: return true;
  }
}

/// The other ranks from which this rank receives in an operation, about evenly.
std::vector<int> senders(const RunPlan& plan, const CollectiveCost& cost) {
  const Ranks& own = plan.ranks;
  std::vector<int> ranks;
  for (int r = 0; r < own.world.size; ++r)
    if (r != own.world.rank && receives_from(plan, cost, Ranks::in_world(own.world.size, r, own.experts.size,
                                                                         own.sharding.size)))
      ranks.push_back(r);
  return ranks;
}

}  // namespace

Received received_over(const RunPlan& plan, int hosts) {
  const int ranks = plan.ranks.world.size;
  require(hosts > 0 && ranks % hosts == 0, "received_over", "takes hosts that divide the ranks");
  const int of_host = ranks / hosts, host = plan.ranks.world.rank / of_host;
  Received received;
  for (const CollectiveCost& cost : plan.collectives) {
    const std::vector<int> all = senders(plan, cost);
    if (all.empty()) continue;
    const auto here = std::ranges::count_if(all, [&](int r) { return r / of_host == host; });
    const double bytes = static_cast<double>(cost.bytes * cost.count) / static_cast<double>(all.size());
    received.inside += bytes * static_cast<double>(here);
    received.across += bytes * static_cast<double>(std::ssize(all) - here);
  }
  return received;
}

Received most_received_over(const RunPlan& plan, int hosts) {
  const Received own = received_over(plan, hosts);
  const int ranks = plan.ranks.world.size, groups = plan.ranks.sharding.size;
  if (groups == 1) return own;
  const Received next = received_over(resolve(plan.config, ranks, ranks / groups), hosts);
  return next.across > own.across ? next : own;
}

std::string hosts_text(const RunPlan& plan, int hosts) {
  const Received received = most_received_over(plan, hosts);
  const int of_host = plan.ranks.world.size / hosts;
  const auto text = [](double bytes) { return bytes_text(static_cast<std::int64_t>(bytes)); };
  return fmt::format("hosts:    {} of {}: a rank receives {} a step from its own host and {} from others, a host {}\n",
                     hosts, counted(of_host, "rank"), text(received.inside), text(received.across),
                     text(received.across * of_host));
}

double largest_over_mean(const RunPlan& plan) {
  double worst = 1;
  for (ProcessGroup processes : process_groups) {
    std::vector<std::int64_t> shares(static_cast<std::size_t>(plan.ranks.of(processes).size));
    for (const Bucket& bucket : plan.layout.buckets())
      if (bucket.key.processes == processes && bucket.key.owner == OwnerKind::element_sharded)
        std::ranges::transform(shares, bucket.counts, shares.begin(), std::plus());
    const auto sum = static_cast<double>(std::reduce(shares.begin(), shares.end()));
    if (sum > 0)
      worst = std::max(worst, static_cast<double>(std::ranges::max(shares)) * static_cast<double>(shares.size()) / sum);
  }
  return worst;
}

std::string uneven_text(const RunPlan& plan) {
  constexpr double noticeable = 1.1;
  const double ratio = largest_over_mean(plan);
  if (ratio <= noticeable) return "";
  return fmt::format(
      "uneven:   a rank owns {:.3g} times the mean, and needs memory and receives gradients accordingly: "
      "weights of recipe {} are cut between rows of scale blocks, which are few for {}; use fewer "
      "ranks, a recipe with smaller blocks, or bf16\n",
      ratio, recipe_text(plan.config.precision), counted(plan.ranks.world.size, "rank"));
}

}  // namespace tessera
