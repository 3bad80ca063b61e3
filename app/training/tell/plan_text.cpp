#include "app/training/tell/plan_text.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "app/cli/memory.hpp"
#include "app/training/tell/hosts_text.hpp"
#include "app/training/tell/plan_schedule.hpp"
#include "app/training/tell/summary.hpp"
#include "core/config/treatments.hpp"
#include "core/optim/rule.hpp"
#include "core/params/planes.hpp"
#include "io/files/json_text.hpp"
#include "io/metrics/console.hpp"
#include "kernels/digest/digest.hpp"
#include "kernels/formats/registry.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera {

std::int64_t parameters(const RunPlan& plan) {
  std::int64_t n = 0;
  for (const ParamSpec& spec : plan.registry.specs())
    n += spec.real_elements() * spec.members * (spec.role == Role::expert ? plan.ranks.experts.size : 1);
  return n;
}

namespace {

/// Rows of a layer at one rank's experts, gaps not counted.
struct PlannedRows {
  std::int64_t most, even;
};
PlannedRows planned_rows(const RunPlan& plan) {
  const MoeShape& moe = plan.model.shape().moe.value();
  const std::int64_t tokens = plan.sizes.micro * plan.sizes.length;
  return {moe.arrival(tokens, 1).room, tokens * moe.top_k};
}

/// Why steps run kernel by kernel; empty if a GPU replays them as one CUDA graph.
std::string reason_for_no_graph(const RunPlan& plan) {
  const bool waits = plan.ranks.experts.size > 1 && !plan.model.shape().moe->by_peers();
  if (waits) return "parallel.expert: the host reads how many rows arrive, layer by layer";
  return plan.graph ? "" : "proof.graph is false";
}

std::string experts_text(const RunPlan& plan) {
  const Ranks& ranks = plan.ranks;
  if (ranks.experts.size == 1) return "";
  const MoeShape& moe = plan.model.shape().moe.value();
  const PlannedRows rows = planned_rows(plan);
  const std::string no_graph = reason_for_no_graph(plan);
  return fmt::format("mesh: {} ranks in {} expert groups of {}; each rank holds {} of {} experts, which {} share\n"
                     "experts' rows: memory for {} a layer, {} of them at even routing\n{}",
                     ranks.world.size, ranks.expert_data.size, ranks.experts.size, moe.held(), moe.experts,
                     ranks.expert_data.size == 1 ? std::string("no ranks")
                                                 : fmt::format("{} ranks", ranks.expert_data.size),
                     rows.most, rows.even, no_graph.empty() ? "" : fmt::format("no graph: {}\n", no_graph));
}

/// Adds mesh, graph and, with expert parallelism, rows.
void add_mesh(nlohmann::ordered_json& json, const RunPlan& plan) {
  json["mesh"] = {{"data", plan.ranks.world.size}, {"expert", plan.ranks.experts.size}};
  const std::string no_graph = reason_for_no_graph(plan);
  json["graph"] = no_graph.empty() ? nlohmann::ordered_json(true) : nlohmann::ordered_json(no_graph);
  if (plan.ranks.experts.size > 1) {
    const PlannedRows rows = planned_rows(plan);
    json["expert"] = {{"ranks", plan.ranks.experts.size},
                      {"held", plan.model.shape().moe->held()},
                      {"rows_planned", rows.most},
                      {"rows_even", rows.even}};
  }
}

/// Calls f for the weights whose products take codes, once for each dataset.
template <class F>
void each_quantized(const RunPlan& plan, const F& f) {
  for (const Dataset& dataset : plan.registry.datasets())
    if (const ParamSpec& spec = plan.registry[dataset.params.front()]; spec.treatment.quantizes())
      f(spec.canonical.name, spec.treatment);
}

/// Calls f for the products of codes, once for each form and shape, with their routes.
template <class F>
void each_route(const RunPlan& plan, const F& f) {
  constexpr const char* forms[] = {"forward", "input_gradient", "weight_gradient"};
  constexpr const char* routes[] = {"decoded", "native"};
  using Shown = std::tuple<gemm::Form, std::int64_t, std::int64_t, std::int64_t, std::int64_t, gemm::Route>;
  std::set<Shown> seen;
  for (const auto& [p, route] : plan.routes.of)
    if (seen.emplace(p.form, p.m, p.n, p.k, p.experts, route).second)
      f(forms[static_cast<int>(p.form)], p, routes[static_cast<int>(route)]);
}

double mib(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// Owners of the whole matrices of one process group, by rank.
struct Owners {
  ProcessGroup processes;
  std::vector<double> cost;  ///< newton_schulz_cost, summed
  std::vector<std::int64_t> elements, momentum_bytes;
};

/// Owners of each process group that has whole-matrix buckets.
std::vector<Owners> owners(const RunPlan& plan) {
  std::vector<Owners> all;
  for (ProcessGroup processes : process_groups) {
    Owners group{processes, {}, {}, {}};
    std::vector<std::int64_t> slices(plan.layout.owners(processes).size());
    for (const Bucket& bucket : plan.layout.buckets())
      for (std::size_t r = 0; r < slices.size(); ++r)
        if (bucket.key.processes == processes && bucket.key.owner == OwnerKind::whole_matrix)
          slices[r] += bucket.counts[r];
    for (std::size_t r = 0; r < slices.size(); ++r) {
      group.cost.push_back(plan.layout.owners(processes)[r].cost);
      group.elements.push_back(plan.layout.owners(processes)[r].elements);
      group.momentum_bytes.push_back(slices[r] * size_of(type_of(plan.optimizer.moments)));
    }
    if (std::reduce(slices.begin(), slices.end()) > 0) all.push_back(std::move(group));
  }
  return all;
}

template <class T> double most_over_mean(const std::vector<T>& values) {
  const double sum = static_cast<double>(std::reduce(values.begin(), values.end()));
  return static_cast<double>(std::ranges::max(values)) * static_cast<double>(values.size()) / sum;
}

std::string owners_text(const RunPlan& plan) {
  std::string text;
  for (const Owners& group : owners(plan)) {
    if (text.empty()) text = "owners of whole matrices: cost of Newton-Schulz, elements, momentum\n";
    for (std::size_t r = 0; r < group.cost.size(); ++r)
      text += fmt::format("  {} rank {:<4} {:>10.3g} {:>12} {:>12.3f} MiB\n", name_of(group.processes), r,
                          group.cost[r], group.elements[r], mib(group.momentum_bytes[r]));
    text += fmt::format("  {} most over mean {:.3f} {:>12.3f}\n", name_of(group.processes), most_over_mean(group.cost),
                        most_over_mean(group.elements));
  }
  return text;
}

nlohmann::ordered_json owners_json(const RunPlan& plan) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Owners& group : owners(plan))
    json.push_back({{"processes", name_of(group.processes)},
                    {"cost", group.cost},
                    {"elements", group.elements},
                    {"momentum_bytes", group.momentum_bytes},
                    {"cost_over_mean", most_over_mean(group.cost)},
                    {"elements_over_mean", most_over_mean(group.elements)}});
  return json;
}

Travel travel_of(const RunPlan& plan, const Bucket& bucket) { return travel_of(bucket.key.format, plan.sync.weights); }

/// Memory in which a bucket's slices are staged for the all-gather.
std::string_view staged_in(const RunPlan& plan, const Bucket& bucket) {
  if (travel_of(plan, bucket) != Travel::bf16) return "in place";
  return name_of(plan.sync.weights.staging == GatherStaging::ring ? GatherStaging::ring : GatherStaging::alias_grads);
}

std::string bucket_text(const RunPlan& plan, const Bucket& bucket) {
  const auto [least, most] = std::ranges::minmax(bucket.counts);
  const Travel travel = travel_of(plan, bucket);
  std::string text = fmt::format("{} {} {}, held {}, wire {}", name_of(bucket.key.format),
                                 name_of(bucket.key.processes), name_of(bucket.key.owner),
                                 held_as(bucket.key.format, travel), travels_as(bucket.key.format, travel));
  if (travel == Travel::bf16) text += fmt::format(" staged in {}", staged_in(plan, bucket));
  text += fmt::format(", gradients {}", name_of(bucket.key.wire));
  const auto slices = std::ranges::count_if(bucket.counts, [](std::int64_t n) { return n > 0; });
  text += fmt::format(", {} in {}", counted(bucket.size.value, "element"), counted(slices, "slice"));
  if (least != most) text += fmt::format(" of at most {}", most);
  return text + fmt::format(", {} ... {}", plan.registry[bucket.members.front().param].name,
                            plan.registry[bucket.members.back().param].name);
}

std::string recomputed_text(const RecomputeConfig& recompute) {
  if (recompute.mode == RecomputeMode::none) return "";
  std::string modules;
  if (recompute.mode == RecomputeMode::selective)
    for (const RecomputeModule module : recompute.modules.get())
      modules.append(modules.empty() ? "" : ", ").append(name_of(module));
  return fmt::format("computed again in backward: {}\n", modules.empty() ? "each block" : modules + " of each block");
}

nlohmann::ordered_json groups_json(const RunPlan& plan) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const BucketGroup& group : plan.layout.groups()) {
    nlohmann::ordered_json buckets = nlohmann::ordered_json::array();
    for (BucketId b : group.buckets) {
      const Bucket& bucket = plan.layout.buckets()[b];
      nlohmann::ordered_json names = nlohmann::ordered_json::array();
      for (const Placement& p : bucket.parameters()) names.push_back(plan.registry[p.param].name);
      const Travel travel = travel_of(plan, bucket);
      buckets.push_back({{"format", name_of(bucket.key.format)},
                         {"held", held_as(bucket.key.format, travel)},
                         {"owner", name_of(bucket.key.owner)},
                         {"wire", travels_as(bucket.key.format, travel)},
                         {"staged", staged_in(plan, bucket)},
                         {"gradients", name_of(bucket.key.wire)},
                         {"elements", bucket.size.value},
                         {"slices", bucket.counts},
                         {"parameters", names}});
    }
    groups.push_back({{"processes", name_of(group.processes)}, {"buckets", buckets}});
  }
  return groups;
}

}  // namespace

std::string plan_text(const RunPlan& plan) {
  std::string text = fmt::format("{}, {} in {}, layout {}\n", counted(plan.ranks.world.size, "rank"),
                                 counted(parameters(plan), "parameter"),
                                 counted(static_cast<std::int64_t>(plan.registry.size()), "tensor"),
                                 hex(plan.layout.hash()));
  text += fmt::format("{} a rank and step in {}, {} a step", counted(plan.sizes.local(), "sequence"),
                      counted(plan.sync.micro_batches, "micro-batch"), flop_text(plan.flops_per_step));
  const double twice = plan.flops_per_step - plan.model_flops_per_step;
  text += twice > 0 ? fmt::format(", {} of them for recomputation\n", flop_text(twice)) : "\n";
  text += experts_text(plan);
  text += plan.ranks.world.rank == 0 ? "memory of one rank\n"
                                     : fmt::format("memory of rank {}, which needs most\n", plan.ranks.world.rank);
  for (std::size_t c = 0; c < plan.memory.size(); ++c)
    text += fmt::format("  {:<12} {:>12.3f} MiB\n", name_of(static_cast<Category>(c)), mib(plan.memory[c]));
  text += fmt::format("  {:<12} {:>12.3f} MiB\n", "total", mib(total(plan.memory)));
  if (const std::int64_t snapshot = snapshot_bytes(plan))
    text += fmt::format("  {:<12} {:>12.3f} MiB of the host\n", "snapshot", mib(snapshot));
  text += "groups\n";
  for (GroupId g : plan.layout.groups().ids())
    for (BucketId b : plan.layout.groups()[g].buckets)
      text += fmt::format("  {:>3}  {}\n", g.value, bucket_text(plan, plan.layout.buckets()[b]));
  text += owners_text(plan);
  if (plan.registry.quantizes()) text += "products of codes\n";
  for (const auto& [treatment, which] : treated_alike(plan.config))
    if (plan.registry.quantizes()) text += fmt::format("  {}: {}\n", which, text_of(treatment));
  if (plan.registry.quantizes())
    text += "their routes: native by units that multiply codes, decoded to bf16 elsewhere\n";
  each_route(plan, [&](const char* form, const gemm::Product& p, const char* route) {
    const std::string experts = p.experts > 0 ? fmt::format(" over {} experts", p.experts) : "";
    text += fmt::format("  {:<16} {} x {} x {}{}: {}\n", form, p.m, p.n, p.k, experts, route);
  });
  text += recomputed_text(plan.config.recompute);
  text += "gathers of one step, bytes that one rank receives\n";
  for (const PlannedGather& gather : gathers_of(plan))
    text += fmt::format("  {:<20} {:<9} {:<20} {:>12} bytes x {}  {}\n", gather.unit, gather.pass, gather.side,
                        gather.bytes, gather.count, gather.why);
  text += "collectives of one step, bytes that one rank receives\n";
  for (const CollectiveCost& cost : plan.collectives)
    text += fmt::format("  {:<16} {:<16} {:>12} bytes\n", name_of(cost.collective),
                        cost.group < 0 ? std::string(cost.label) : fmt::format("group {}", cost.group),
                        cost.bytes * cost.count);
  return text + schedule_text(plan);
}

std::string plan_json(const RunPlan& plan, const std::optional<GranularityPeaks>& peaks, int hosts) {
  nlohmann::ordered_json json{{"ranks", plan.ranks.world.size},
                              {"parameters", parameters(plan)},
                              {"layout", hex(plan.layout.hash())},
                              {"flops_per_step", plan.flops_per_step},
                              {"model_flops_per_step", plan.model_flops_per_step}};
  for (std::size_t c = 0; c < plan.memory.size(); ++c)
    json["memory"][name_of(static_cast<Category>(c))] = plan.memory[c];
  json["host_memory"] = {{"snapshot", snapshot_bytes(plan)}};
  add_mesh(json, plan);
  json["groups"] = groups_json(plan);
  json["owners"] = owners_json(plan);
  json["largest_over_mean"] = largest_over_mean(plan);
  if (const int groups = plan.ranks.sharding.size; groups > 1) {
    const Received received = most_received_over(plan, groups);
    json["sharding_groups"] = {
        {"groups", groups}, {"bytes_inside", received.inside}, {"bytes_across", received.across}};
  }
  if (hosts > 1) {
    const Received received = most_received_over(plan, hosts);
    json["hosts"] = {{"hosts", hosts}, {"bytes_inside", received.inside}, {"bytes_across", received.across}};
  }
  json["products"] = nlohmann::ordered_json::array();
  each_quantized(plan, [&](const std::string& name, const Treatment& treatment) {
    json["products"].push_back({{"parameter", name},
                                {"weight", text_of(treatment.weight)},
                                {"activation", text_of(treatment.activation)},
                                {"gradient", text_of(treatment.gradient)}});
  });
  json["routes"] = nlohmann::ordered_json::array();
  each_route(plan, [&](const char* form, const gemm::Product& p, const char* route) {
    json["routes"].push_back(
        {{"form", form}, {"m", p.m}, {"n", p.n}, {"k", p.k}, {"experts", p.experts}, {"route", route}});
  });
  json["collectives"] = nlohmann::ordered_json::array();
  for (const CollectiveCost& cost : plan.collectives)
    json["collectives"].push_back(
        {{"group", cost.group}, {"op", name_of(cost.collective)}, {"label", cost.label}, {"bytes", cost.bytes},
         {"count", cost.count}});
  json["gathers"] = nlohmann::ordered_json::array();
  for (const PlannedGather& gather : gathers_of(plan))
    json["gathers"].push_back({{"unit", gather.unit},
                               {"pass", gather.pass},
                               {"side", gather.side},
                               {"bytes", gather.bytes},
                               {"count", gather.count},
                               {"why", gather.why}});
  json["schedule"] = schedule_json(plan);
  if (peaks)
    json["granularity"] = {{"used", gathers_modules(plan.config) ? "module" : "block"},
                           {"unit", peaks->unit},
                           {"module", peaks->module}};
  return json_text(json, 2);
}

}  // namespace tessera
