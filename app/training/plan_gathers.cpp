#include "app/training/plan_gathers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>

#include "core/params/visits.hpp"

namespace tessera {
namespace {

Way way_of(const RunPlan& plan, BucketId bucket) {
  return way_of(plan.layout.buckets()[bucket].key.format, plan.sync.weights);
}

/// Text of what travels of a group's buckets, and why that is enough.
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

/// Whether a bucket of the group has two copies that travel apart.
bool has_two_payloads(const RunPlan& plan, GroupId group) {
  for (BucketId b : plan.layout.groups()[group].buckets)
    if (payload_of(plan.layout.buckets()[b].key.format, way_of(plan, b), Side::columnwise) == Sides::columnwise)
      return true;
  return false;
}

/// Name of a module, from its weights' names: "attention" of "layers.3.attention.qkv.weight".
std::string module_of(const RunPlan& plan, const BucketGroup& group) {
  for (BucketId b : group.buckets)
    for (const Placement& member : plan.layout.buckets()[b].members) {
      const ParamSpec& param = plan.registry[member.param];
      if (!is_matrix(param.role) && param.role != Role::router) continue;
      const std::string& name = param.canonical.name;
      const std::size_t begin = name.find('.', name.find('.') + 1) + 1;
      return name.substr(begin, name.find('.', begin) - begin);
    }
  return "norms";
}

std::string unit_of(const RunPlan& plan, GroupId id) {
  const BucketGroup& group = plan.layout.groups()[id];
  const ParamSpec& first = plan.registry[plan.layout.buckets()[group.buckets.front()].members.front().param];
  std::string text = first.block < 0 ? first.canonical.name : fmt::format("block {}", first.block);
  if (first.block >= 0 && group.unit >= 0) text += " " + module_of(plan, group);
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

/// The all-gathers of one visit of a pass in a step.
struct Gathered {
  std::size_t first = 0;   ///< index of the first one among the all-gathers of its group
  std::int64_t count = 0;  ///< 0 if the visit before always holds its weights already
};
std::vector<Gathered> walked(const RunPlan& plan, std::span<const Visit> visits) {
  std::vector<Gathered> all(visits.size());
  IndexedBy<GroupId, std::size_t> gathers(plan.layout.groups().size(), 0);
  Walk walk(visits, plan.sync.micro_batches);
  for (walk.advance(); const Visit* visit = walk.current(); walk.advance()) {
    Gathered& own = all[static_cast<std::size_t>(visit - visits.data())];
    if (own.count++ == 0) own.first = gathers[visit->group];
    ++gathers[visit->group];
  }
  return all;
}

std::int64_t bytes_of(const RunPlan& plan, GroupId group, std::size_t number) {
  for (const CollectiveCost& cost : plan.collectives)
    if (cost.group == group.value && cost.collective == Collective::all_gather && number-- == 0) return cost.bytes;
  return 0;
}

std::vector<PlannedGather> by_visit(const RunPlan& plan, ProcessGroup processes) {
  std::vector<Visit> visits = visits_of(plan.usage.training, plan.registry, plan.layout, plan.sync.weights);
  std::erase_if(visits, [&](const Visit& one) { return plan.layout.groups()[one.group].processes != processes; });
  const std::vector<Gathered> gathered = walked(plan, visits);
  std::vector<PlannedGather> gathers;
  for (std::size_t i = 0; i < visits.size(); ++i) {
    const Visit& visit = visits[i];
    const std::int64_t count = gathered[i].count;
    gathers.push_back({unit_of(plan, visit.group), visit.half == Half::forward ? "forward" : "backward",
                       side_of(plan, visit), count > 0 ? bytes_of(plan, visit.group, gathered[i].first) : 0, count,
                       count > 0 ? why_of(plan, visit) : "still there from the visit before"});
  }
  return gathers;
}

}  // namespace

std::vector<PlannedGather> gathers_of(const RunPlan& plan) {
  std::vector<PlannedGather> gathers;
  if (plan.sync.weights.sharding == Sharding::full) {
    for (ProcessGroup processes : process_groups)
      if (plan.ranks.of(processes).size > 1)  // one rank alone holds all weights and gathers nothing
        std::ranges::move(by_visit(plan, processes), std::back_inserter(gathers));
    return gathers;
  }
  for (GroupId group : plan.layout.groups().ids()) gathers.push_back(once_a_step(plan, group));
  return gathers;
}

}  // namespace tessera
