#include "app/training/plan_text.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <numeric>

namespace tessera {
namespace {

std::int64_t parameters(const RunPlan& plan) {
  std::int64_t n = 0;
  for (const ParamSpec& spec : plan.registry.specs()) n += spec.real_elements() * spec.members;
  return n;
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

std::string plan_text(const RunPlan& plan) {
  std::string text = fmt::format("{} ranks, {} parameters in {} tensors, layout {:016x}\n", plan.ranks.world.size,
                                 parameters(plan), plan.registry.size(), plan.layout.hash());
  text += fmt::format("{} sequences a rank and step in {} micro-batches, {:.3g} GFLOP a step", plan.sizes.local,
                      plan.sync.micro_batches, plan.flops_per_step * 1e-9);
  const double twice = plan.flops_per_step - plan.model_flops_per_step;
  text += twice > 0 ? fmt::format(", {:.3g} of them for recomputation\n", twice * 1e-9) : "\n";
  text += "memory of one rank\n";
  for (std::size_t c = 0; c < plan.memory.size(); ++c)
    text += fmt::format("  {:<12} {:>12.3f} MiB\n", name_of(static_cast<Category>(c)), mib(plan.memory[c]));
  text += fmt::format("  {:<12} {:>12.3f} MiB\n", "total",
                      mib(std::accumulate(plan.memory.begin(), plan.memory.end(), std::int64_t{0})));
  text += "groups\n";
  for (GroupId g : plan.layout.groups().ids())
    for (BucketId b : plan.layout.groups()[g].buckets) {
      const Bucket& bucket = plan.layout.buckets()[b];
      text += fmt::format("  {:>3}  {} {} {}, {} elements in {} slices, {} ... {}\n", g.value,
                          name_of(bucket.key.format),
                          name_of(bucket.key.processes), name_of(bucket.key.owner), bucket.size.value, bucket.ranks(),
                          plan.registry[bucket.members.front().param].name,
                          plan.registry[bucket.members.back().param].name);
    }
  text += "collectives of one step, bytes that one rank receives\n";
  for (const CollectiveCost& cost : plan.collectives)
    text += fmt::format("  {:<16} {:<10} {:>12} bytes\n", name_of(cost.collective),
                        cost.group < 0 ? "-" : fmt::format("group {}", cost.group), cost.bytes * cost.count);
  return text;
}

std::string plan_json(const RunPlan& plan) {
  nlohmann::ordered_json json{{"ranks", plan.ranks.world.size},
                              {"parameters", parameters(plan)},
                              {"layout", fmt::format("{:016x}", plan.layout.hash())},
                              {"flops_per_step", plan.flops_per_step},
                              {"model_flops_per_step", plan.model_flops_per_step}};
  for (std::size_t c = 0; c < plan.memory.size(); ++c)
    json["memory"][name_of(static_cast<Category>(c))] = plan.memory[c];
  json["groups"] = nlohmann::ordered_json::array();
  for (const BucketGroup& group : plan.layout.groups()) {
    nlohmann::ordered_json buckets = nlohmann::ordered_json::array();
    for (BucketId b : group.buckets) {
      const Bucket& bucket = plan.layout.buckets()[b];
      nlohmann::ordered_json names = nlohmann::ordered_json::array();
      for (const Placement& p : bucket.members)
        if (p.member == 0) names.push_back(plan.registry[p.param].name);
      buckets.push_back({{"storage", name_of(bucket.key.format)},
                         {"owner", name_of(bucket.key.owner)},
                         {"elements", bucket.size.value},
                         {"slice", bucket.counts.front()},
                         {"parameters", names}});
    }
    json["groups"].push_back({{"processes", name_of(group.processes)}, {"buckets", buckets}});
  }
  json["collectives"] = nlohmann::ordered_json::array();
  for (const CollectiveCost& cost : plan.collectives)
    json["collectives"].push_back(
        {{"group", cost.group}, {"op", name_of(cost.collective)}, {"bytes", cost.bytes}, {"count", cost.count}});
  return json.dump(2);
}

}  // namespace tessera
