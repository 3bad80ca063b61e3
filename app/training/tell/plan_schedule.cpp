#include "app/training/tell/plan_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/params/labels.hpp"
#include "io/metrics/console.hpp"

namespace tessera {
namespace {

Travel travel_of(const RunPlan& plan, BucketId bucket) {
  return travel_of(plan.layout.buckets()[bucket].key.format, plan.sync.weights);
}

/// Text of what travels of a group's buckets, and why that is enough.
std::string reasons(const RunPlan& plan, GroupId group) {
  std::string text;
  for (BucketId b : plan.layout.groups()[group].buckets) {
    const WeightFormat& format = plan.layout.buckets()[b].key.format;
    const std::string why = travels_as(format, travel_of(plan, b)) + ": " + reason_of(format, travel_of(plan, b));
    if (text.find(why) == std::string::npos) text += (text.empty() ? "" : "; ") + why;
  }
  return text;
}

PlannedGather once_a_step(const RunPlan& plan, GroupId group) {
  PlannedGather gather{fmt::format("group {}", group.value),
                       plan.sync.gather == Overlap::on ? "forward" : "publish",
                       "both",
                       0,
                       1,
                       reasons(plan, group)};
  for (const CollectiveCost& cost : plan.collectives)
    if (cost.group == group.value && cost.label == label::weights) gather.bytes += cost.bytes * cost.count;
  return gather;
}

/// Whether a bucket of the group has two copies that travel apart.
bool has_two_payloads(const RunPlan& plan, GroupId group) {
  for (BucketId b : plan.layout.groups()[group].buckets)
    if (payload_of(plan.layout.buckets()[b].key.format, travel_of(plan, b), Side::columnwise) == Sides::columnwise)
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

/// The all-gathers of one visit of a micro-batch in a step.
struct Gathered {
  std::size_t first = 0;   ///< index of the first one among the all-gathers of its group
  std::int64_t count = 0;  ///< 0 if the visit before always holds its weights already
};
Gathered gathered(const RunPlan& plan, const Visit& of_pass) {
  Gathered all;
  std::size_t gathers = 0;
  for (const Visit& visit : plan.schedule.training) {
    if (visit.group != of_pass.group) continue;
    if (visit.access == of_pass.access && all.count++ == 0) all.first = gathers;
    ++gathers;
  }
  return all;
}

/// Bytes that this rank receives in a group's collective with a label, by number in a step.
std::int64_t bytes_of(const RunPlan& plan, std::string_view label, GroupId group, std::size_t number) {
  for (const CollectiveCost& cost : plan.collectives)
    if (cost.group == group.value && cost.label == label && number-- == 0) return cost.bytes;
  return 0;
}

std::vector<PlannedGather> by_visit(const RunPlan& plan, ProcessGroup processes) {
  std::vector<PlannedGather> gathers;
  for (const Visit& visit : visits_of(plan.usage.training, plan.layout, plan.sync.weights)) {
    if (plan.layout.groups()[visit.group].processes != processes) continue;
    const auto [first, count] = gathered(plan, visit);
    gathers.push_back({unit_of(plan, visit.group), name_of(visit.half), side_of(plan, visit),
                       count > 0 ? bytes_of(plan, label::weights, visit.group, first) : 0, count,
                       count > 0 ? why_of(plan, visit) : "still there from the visit before"});
  }
  return gathers;
}

nlohmann::ordered_json visits_json(const RunPlan& plan, const Visits& visits) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  IndexedBy<GroupId, std::size_t> gathers(plan.layout.groups().size(), 0);
  for (const Visit& visit : visits)
    rows.push_back({{"group", visit.group.value},
                    {"sides", name_of(visit.sides)},
                    {"pool", visit.pool.value},
                    {"slot", visit.slot},
                    {"micro_batch", visit.micro_batch},
                    {"half", name_of(visit.half)},
                    {"next", visit.next.value},
                    {"prefetch", visit.prefetch.value},
                    {"staged", name_of(visit.staged)},
                    {"bytes", bytes_of(plan, plan.schedule.pools[visit.pool].level == Level::inside ? label::weights
                                                                                                    : label::shards,
                                       visit.group, gathers[visit.group]++)}});
  return rows;
}

std::string visits_text(const RunPlan& plan, const char* title, const Visits& visits) {
  if (visits.empty()) return "";
  std::string text =
      fmt::format("  {}: number, what, payload, pool and slot, first access, gather that it starts\n", title);
  for (VisitId id : visits.ids()) {
    const Visit& visit = visits[id];
    if (visit.micro_batch > 1) {
      text += fmt::format("    ... to {}, of {} micro-batches\n", visits.size() - 1, plan.sync.micro_batches);
      break;
    }
    const std::string prefetch = visit.prefetch == VisitId{} ? "" : fmt::format(", {}", visit.prefetch.value);
    text += fmt::format("    {:>4}  {:<26} {:<9} {:>3} {:>2}  micro-batch {} {:<8}  {}{}{}\n", id.value,
                        fmt::format("group {}, {}", visit.group.value, unit_of(plan, visit.group)),
                        name_of(visit.sides), visit.pool.value, visit.slot, visit.micro_batch + 1, name_of(visit.half),
                        id.value, prefetch, visit.staged == StagedAt::gather ? ", staged with its gather" : "");
  }
  return text;
}

std::string reductions_text(const RunPlan& plan) {
  std::string text = "  reductions: group, round, micro-batches added up before it, gradient slot, sum, start\n";
  for (const Reduction& one : plan.schedule.reductions) {
    if (one.round > 1 && one.idle == 0) continue;
    const std::string after = one.after == VisitId{} ? "" : fmt::format(", behind resident visit {}", one.after.value);
    const std::string idle = one.idle == 0 ? "" : fmt::format(", without the last {}", counted(one.idle, "rank"));
    text += fmt::format("    group {:<4} {:>3} {:>3} {:>3}  {:<6}  {}{}{}\n", one.group.value, one.round,
                        one.micro_batches, one.slot, name_of(one.sum), name_of(one.begin), after, idle);
  }
  return text;
}

}  // namespace

std::string schedule_text(const RunPlan& plan) {
  const SyncSchedule& schedule = plan.schedule;
  std::string text = "schedule of one step\n";
  for (PoolId id : schedule.pools.ids()) {
    const Pool& pool = schedule.pools[id];
    text += fmt::format("  pool {}: {}, {}, {}{}\n", id.value, name_of(pool.processes), name_of(pool.residency),
                        counted(pool.slots, "slot"), pool.level == Level::across ? ", across sharding groups" : "");
  }
  text += visits_text(plan, "shards, between two publications", schedule.shards);
  text += visits_text(plan, "resident weights, between two publications", schedule.resident);
  text += visits_text(plan, "weights in training", schedule.training);
  text += visits_text(plan, "weights in an evaluation", schedule.evaluation);
  return text + reductions_text(plan);
}

nlohmann::ordered_json schedule_json(const RunPlan& plan) {
  const SyncSchedule& schedule = plan.schedule;
  nlohmann::ordered_json json;
  for (const char* list : {"pools", "gradient_slots", "reductions", "amaxes"})
    json[list] = nlohmann::ordered_json::array();
  for (const Pool& pool : schedule.pools)
    json["pools"].push_back(
        {{"processes", name_of(pool.processes)}, {"residency", name_of(pool.residency)}, {"slots", pool.slots},
         {"level", name_of(pool.level)}});
  for (const GradientSlot& slot : schedule.gradient_slots)
    json["gradient_slots"].push_back(
        {{"residency", name_of(slot.residency)}, {"memory", slot.memory}, {"elements", slot.elements},
         {"end", name_of(slot.end)}});
  for (const Reduction& one : schedule.reductions)
    json["reductions"].push_back(
        {{"group", one.group.value},
         {"round", one.round},
         {"micro_batches", one.micro_batches},
         {"slot", one.slot},
         {"sum", name_of(one.sum)},
         {"begin", name_of(one.begin)},
         {"after", one.after.value},
         {"idle", one.idle},
         {"bytes", bytes_of(plan, label::gradients, one.group, static_cast<std::size_t>(one.round))}});
  for (ProcessGroup processes : schedule.amaxes) json["amaxes"].push_back(name_of(processes));
  json["shards"] = visits_json(plan, schedule.shards);
  json["resident"] = visits_json(plan, schedule.resident);
  json["training"] = visits_json(plan, schedule.training);
  json["evaluation"] = visits_json(plan, schedule.evaluation);
  json["inspection"] = visits_json(plan, schedule.inspection);
  return json;
}

std::vector<PlannedGather> gathers_of(const RunPlan& plan) {
  std::vector<PlannedGather> gathers;
  if (plan.sync.weights.sharding == Sharding::full) {
    for (ProcessGroup processes : process_groups)
      if (plan.ranks.of(processes, Level::inside).size > 1)  // one rank alone holds all weights and gathers nothing
        std::ranges::move(by_visit(plan, processes), std::back_inserter(gathers));
    return gathers;
  }
  for (GroupId group : plan.layout.groups().ids()) gathers.push_back(once_a_step(plan, group));
  return gathers;
}

}  // namespace tessera
