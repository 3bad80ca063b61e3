#include "app/training/plan_gathers.hpp"

#include <fmt/format.h>

#include "core/params/visits.hpp"

namespace tessera {
namespace {

Way way_of(const RunPlan& plan, BucketId bucket) {
  return way_of(plan.layout.buckets()[bucket].key.format, plan.sync.weights);
}

/// What travels of a group's buckets, and why that is enough.
std::string reasons(const RunPlan& plan, GroupId group) {
  std::string text;
  for (BucketId b : plan.layout.groups()[group].buckets) {
    const WeightFormat& format = plan.layout.buckets()[b].key.format;
    const std::string why = travels_as(format, way_of(plan, b)) + ": " + reason_of(format, way_of(plan, b));
    if (text.find(why) == std::string::npos) text += (text.empty() ? "" : "; ") + why;
  }
  return text;
}

PlannedGather once_a_step(const RunPlan& plan, GroupId group) {
  PlannedGather gather{fmt::format("group {}", group.value), plan.sync.gather == Overlap::on ? "forward" : "publish",
                       "both", 0, 1, reasons(plan, group)};
  for (const CollectiveCost& cost : plan.collectives)
    if (cost.group == group.value && cost.collective == Collective::all_gather) gather.bytes += cost.bytes * cost.count;
  return gather;
}

/// Whether some bucket's two copies travel apart.
bool has_two_payloads(const RunPlan& plan, GroupId group) {
  for (BucketId b : plan.layout.groups()[group].buckets)
    if (payload_of(plan.layout.buckets()[b].key.format, way_of(plan, b), Side::columnwise) == Sides::columnwise)
      return true;
  return false;
}

std::string unit_of(const RunPlan& plan, GroupId id) {
  const BucketGroup& group = plan.layout.groups()[id];
  const ParamSpec& first = plan.registry[plan.layout.buckets()[group.buckets.front()].members.front().param];
  std::string text = first.block < 0 ? first.canonical.name : fmt::format("block {}", first.block);
  if (first.block >= 0 && group.unit >= 0) text += fmt::format(" module {}", group.unit);
  return group.processes == ProcessGroup::expert ? text + " experts" : text;
}

std::string why_of(const RunPlan& plan, const Visit& visit) {
  if (!has_two_payloads(plan, visit.group)) return reasons(plan, visit.group);
  if (visit.sides == Sides::none) return "values alone are read";
  if (visit.half == Half::forward)
    return visit.sides == Sides::both ? "products read one copy, their gradients the other"
                                      : "products read the rowwise copy alone";
  if (visit.sides == Sides::columnwise) return "gradients read the columnwise copy alone";
  return visit.sides == Sides::rowwise ? "computed again" : "gradients, and beside them what is computed again";
}

std::string side_of(const RunPlan& plan, const Visit& visit) {
  if (!has_two_payloads(plan, visit.group)) return "both";
  return visit.sides == Sides::both ? "rowwise, columnwise" : name_of(visit.sides);
}

/// The k-th all-gather of a group is its k-th visit.
std::vector<PlannedGather> by_visit(const RunPlan& plan) {
  std::vector<PlannedGather> gathers;
  IndexedBy<GroupId, std::size_t> seen(plan.layout.groups().size(), 0);
  const auto bytes = [&](GroupId group) {
    std::size_t number = seen[group]++;
    for (const CollectiveCost& cost : plan.collectives)
      if (cost.group == group.value && cost.collective == Collective::all_gather && number-- == 0) return cost.bytes;
    return std::int64_t{0};  // one process holds all
  };
  for (const Visit& visit : visits_of(plan.usage.training, plan.registry, plan.layout, plan.sync.weights))
    gathers.push_back({unit_of(plan, visit.group), visit.half == Half::forward ? "forward" : "backward",
                       side_of(plan, visit), bytes(visit.group), plan.sync.micro_batches, why_of(plan, visit)});
  return gathers;
}

}  // namespace

std::vector<PlannedGather> gathers_of(const RunPlan& plan) {
  if (plan.sync.weights.sharding == Sharding::full) return by_visit(plan);
  std::vector<PlannedGather> gathers;
  for (GroupId group : plan.layout.groups().ids()) gathers.push_back(once_a_step(plan, group));
  return gathers;
}

}  // namespace tessera
