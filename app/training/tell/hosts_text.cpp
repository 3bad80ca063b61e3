#include "app/training/tell/hosts_text.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "io/metrics/console.hpp"

namespace tessera {
namespace {

/// The ranks of the world that take part in an operation of this rank.
std::vector<int> taking_part(const RunPlan& plan, const CollectiveCost& cost) {
  const Ranks& own = plan.ranks;
  const bool rows = cost.collective == Collective::exchange_rows;
  const bool of_experts =
      cost.group >= 0 && plan.layout.groups()[GroupId{cost.group}].processes == ProcessGroup::expert;
  std::vector<int> ranks;
  for (int r = 0; r < own.world.size; ++r) {
    const Ranks other = Ranks::in_world(own.world.size, r, own.experts.size);
    if (rows ? other.expert_data == own.expert_data : !of_experts || other.experts == own.experts) ranks.push_back(r);
  }
  return ranks;
}

}  // namespace

Received received_over(const RunPlan& plan, int hosts) {
  const int ranks = plan.ranks.world.size;
  require(hosts > 0 && ranks % hosts == 0, "received_over", "takes hosts that divide the ranks");
  const int of_host = ranks / hosts, host = plan.ranks.world.rank / of_host;
  Received received;
  for (const CollectiveCost& cost : plan.collectives) {
    const std::vector<int> all = taking_part(plan, cost);
    const auto here = std::ranges::count_if(all, [&](int r) { return r / of_host == host; });
    const auto bytes = static_cast<double>(cost.bytes * cost.count), others = static_cast<double>(all.size()) - 1;
    if (others == 0) continue;
    received.inside += bytes * static_cast<double>(here - 1) / others;
    received.across += bytes * (static_cast<double>(all.size()) - static_cast<double>(here)) / others;
  }
  return received;
}

std::string hosts_text(const RunPlan& plan, int hosts) {
  const Received received = received_over(plan, hosts);
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
