#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "core/config/divisors.hpp"
#include "core/config/recipe_schedule.hpp"
#include "core/config/treatments.hpp"
#include "core/plan/plan.hpp"
#include "core/recipe/recipe.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera {
namespace {

/// Refuses batches that these ranks cannot share.
void add_batch_findings(const RunConfig& config, int ranks, std::vector<Finding>& findings) {
  const BatchConfig& batch = config.batch;
  if (batch.micro <= 0 || batch.global % batch.micro != 0) return;  // check() refuses it
  const std::int64_t micro_batches = batch.global / batch.micro, expert = config.parallel.expert;
  const bool by_batch = config.reduce.order == ReduceOrder::batch;
  if (by_batch && micro_batches < ranks)
    findings.push_back({{"batch.global", "batch.micro"},
                        fmt::format("{} sequences are {} micro-batches of {}, and each of {} ranks computes at least "
                                    "one: use at most {} rank{}, or {}",
                                    batch.global, micro_batches, batch.micro, ranks, micro_batches,
                                    micro_batches == 1 ? "" : "s",
                                    any_ranks_advice(batch, ranks, std::max<std::int64_t>(1, expert)))});
  else if (by_batch && expert > 0 && micro_batches % expert != 0)
    findings.push_back({{"batch.global", "batch.micro", "parallel.expert"},
                        fmt::format("{} sequences are {} micro-batches of {}, and {} ranks of an expert group compute "
                                    "one each at a time: {}",
                                    batch.global, micro_batches, batch.micro, expert, batch_advice(batch, expert))});
  else if (!by_batch && micro_batches % ranks != 0)
    findings.push_back({{"batch.global", "batch.micro", "reduce.order"},
                        fmt::format("{} sequences cannot be shared by {} ranks in micro-batches of {}: {}, or "
                                    "reduce.order batch{}",
                                    batch.global, ranks, batch.micro, batch_advice(batch, ranks),
                                    micro_batches < ranks ? fmt::format(" and at most {} ranks", micro_batches) : "")});
  if (by_batch && micro_batches > ranks && config.proof.staging == GatherStaging::alias_grads)
    findings.push_back({{"proof.staging", "reduce.order"},
                        "is alias_grads, and order batch keeps no whole gradients where a rank has several "
                        "micro-batches: use staging ring or auto"});
}

/// What refusals call a treatment: the recipe's name, or its formats.
std::string name_of(const Treatment& treatment) {
  for (const Recipe& recipe : recipes())
    if (recipe.treatment == treatment) return std::string(recipe.name);
  return text_of(treatment);
}

/// Refuses matrices whose shape their formats do not take, naming one of those that are alike.
void add_matrix_findings(const ParamRegistry& registry, std::vector<Finding>& findings) {
  std::set<std::string> told;
  for (const Dataset& dataset : registry.datasets()) {
    const ParamSpec& spec = registry[dataset.params.front()];
    const Multiples of = multiples_of(spec.treatment);
    if (spec.member.rank() != 2 || (spec.member[0] % of.out == 0 && spec.member[1] % of.in == 0)) continue;
    const std::string sides = of.out == of.in ? fmt::format("sides are multiples of {}", of.out)
                              : of.out == 1   ? fmt::format("columns are a multiple of {}", of.in)
                              : of.in == 1
                                  ? fmt::format("rows are a multiple of {}", of.out)
                                  : fmt::format("rows are a multiple of {} and columns of {}", of.out, of.in);
    const std::string shape = fmt::format("{} {} {} [{}, {}]", name_of(spec.treatment), name_of(spec.part),
                                          static_cast<int>(spec.role), spec.member[0], spec.member[1]);
    if (!told.insert(shape).second) continue;
    findings.push_back({{"precision.recipe", "model.hidden", "model.ffn", "model.heads"},
                        fmt::format("{} takes matrices whose {}, and {} is [{}, {}]: change the model's sizes, or use "
                                    "recipe bf16",
                                    name_of(spec.treatment), sides, spec.canonical.name, spec.member[0],
                                    spec.member[1])});
  }
}

/// Refuses numbers of tokens in a micro-batch that some matrix's formats do not take.
void add_row_findings(const RunConfig& config, std::vector<Finding>& findings) {
  const std::int64_t micro = config.batch.micro, length = config.model.seq_len, tokens = micro * length;
  std::string recipe;
  std::int64_t rows = 1;
  for (const auto& [treatment, which] : treated_alike(config))
    if (const std::int64_t of = multiples_of(treatment).rows; of > rows) {
      rows = of;
      recipe = name_of(treatment);
    }
  if (micro <= 0 || length <= 0 || tokens % rows == 0) return;
  const std::int64_t unit = rows / std::gcd(length, rows), below = micro / unit * unit;
  const std::int64_t of_length = rows / std::gcd(micro, rows), shorter = length / of_length * of_length;
  const auto nearest = [](std::int64_t low, std::int64_t step) {
    return low > 0 ? fmt::format("{} or {}", low, low + step) : fmt::format("{}", low + step);
  };
  findings.push_back({{"batch.micro", "model.seq_len", "precision.recipe"},
                      fmt::format("{} takes micro-batches of a multiple of {} tokens, and {} x seq_len {} is {}: use "
                                  "batch.micro {}, or model.seq_len {}",
                                  recipe, rows, micro, length, tokens, nearest(below, unit),
                                  nearest(shorter, of_length))});
}

/// Refusals by number formats, for a model that is otherwise valid.
void add_recipe_findings(const RunConfig& config, std::vector<Finding>& findings) {
  const auto of_model = [](const Finding& finding) {
    return std::any_of(finding.keys.begin(), finding.keys.end(),
                       [](const std::string& key) { return key.starts_with("model.") || key == "precision.compute"; });
  };
  const bool sound = std::none_of(findings.begin(), findings.end(), of_model);
  add_row_findings(config, findings);
  if (!sound || !quantizes(config)) return;
  ParamRegistry registry(treatment_rules(config));
  Gpt(registry, GptShape::from(config));
  add_matrix_findings(registry, findings);
}

/// Refusals of heads that this back end's attention does not take.
void add_head_findings(const ModelConfig& model, std::vector<Finding>& findings) {
  if (!model.head_dim.known() || model.head_dim.get() <= most_head_dim()) return;
  findings.push_back({{"model.head_dim", "model.heads", "model.hidden"},
                      fmt::format("heads of {} are wider than the {} that attention takes here: use more heads, or a "
                                  "smaller head_dim",
                                  model.head_dim.get(), most_head_dim())});
}

/// Refuses sharding groups into which the ranks, or their expert groups, do not fit.
void add_group_findings(const RunConfig& config, int ranks, std::vector<Finding>& findings) {
  const std::int64_t group = config.parallel.sharding_group.of(ranks), expert = config.parallel.expert;
  if (expert <= 0 || ranks % expert != 0) return;  // refused as such
  if (ranks % group == 0 && group % expert == 0) return;
  std::vector<std::int64_t> possible;
  for (std::int64_t n : divisors(ranks))
    if (n % expert == 0) possible.push_back(n);
  const char* const of = config.parallel.sharding_group.is_host() ? " ranks of a host" : "";
  const std::string use = fmt::format("use {}, or all", one_of(possible));
  if (ranks % group != 0)
    findings.push_back({{"parallel.sharding_group"},
                        fmt::format("{}{} do not divide {} ranks into groups of neighbours: {}", group, of, ranks,
                                    use)});
  else
    findings.push_back({{"parallel.sharding_group", "parallel.expert"},
                        fmt::format("{}{} are not whole expert groups, which are {} neighbours each: {}", group, of,
                                    expert, use)});
}

/// Refusals of expert parallelism: experts against ranks, or against the products of one rank.
void add_expert_findings(const RunConfig& config, int ranks, std::vector<Finding>& findings) {
  const std::int64_t expert = config.parallel.expert;
  if (expert > 0 && ranks % expert != 0)
    findings.push_back({{"parallel.expert"},
                        fmt::format("{} does not divide {} ranks, which form groups of so many neighbours: use a "
                                    "number that does, or other ranks",
                                    expert, ranks)});
  const auto& moe = config.model.moe;
  if (!moe || expert <= 0 || moe->weights == ExpertWeights::single || moe->experts / expert <= most_discrete_experts())
    return;
  findings.push_back({{"model.moe.experts", "model.moe.weights"},
                      fmt::format("{} discrete experts are more than the {} that a product takes here; use `weights: "
                                  "single`, which computes the same, or fewer experts on a rank",
                                  moe->experts / expert, most_discrete_experts())});
}

}  // namespace

std::vector<Finding> refusals(const RunConfig& config, int ranks) {
  std::vector<Finding> findings = check(config);
  add_batch_findings(config, ranks, findings);
  add_head_findings(config.model, findings);
  add_expert_findings(config, ranks, findings);
  add_group_findings(config, ranks, findings);
  add_recipe_findings(config_of(config, 0), findings);
  for (Finding& finding : found_later(config, [](const RunConfig& segment) {
         std::vector<Finding> found;
         add_recipe_findings(segment, found);
         return found;
       }))
    findings.push_back(std::move(finding));
  return findings;
}

}  // namespace tessera
