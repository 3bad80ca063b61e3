#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "core/config/batch_advice.hpp"
#include "core/plan/plan.hpp"
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
                                    "one: use at most {} ranks, or {}",
                                    batch.global, micro_batches, batch.micro, ranks, micro_batches,
                                    batch_advice(batch, ranks))});
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

/// Refuses matrices whose shape the recipe's format does not take, naming each dataset once, in the first block with
/// it.
void add_matrix_findings(const RunConfig& config, const Recipe& recipe, std::vector<Finding>& findings) {
  ParamRegistry registry(format_rules(config));
  Gpt(registry, GptShape::from(config));
  int first_block = -2;
  for (const Dataset& dataset : registry.datasets()) {
    const ParamSpec& spec = registry[dataset.params.front()];
    if (!spec.format.codes) continue;
    if (first_block == -2) first_block = spec.block;
    const bool repeated = spec.block != first_block && spec.block >= 0;
    if (repeated || (spec.member[0] % recipe.matrix == 0 && spec.member[1] % recipe.matrix == 0)) continue;
    findings.push_back({{"precision.recipe", "model.hidden", "model.ffn", "model.heads"},
                        fmt::format("{} takes matrices whose sides are multiples of {}, and {} is [{}, {}]: change the "
                                    "model's sizes, or use recipe bf16",
                                    recipe.name, recipe.matrix, spec.canonical.name, spec.member[0], spec.member[1])});
  }
}

/// Refuses numbers of tokens in a micro-batch that the recipe does not take.
void add_row_findings(const RunConfig& config, const Recipe& recipe, std::vector<Finding>& findings) {
  const std::int64_t micro = config.batch.micro, length = config.model.seq_len, tokens = micro * length;
  if (micro <= 0 || length <= 0 || tokens % recipe.rows == 0) return;
  const std::int64_t unit = recipe.rows / std::gcd(length, recipe.rows), below = micro / unit * unit;
  const std::int64_t of_length = recipe.rows / std::gcd(micro, recipe.rows), shorter = length / of_length * of_length;
  const auto nearest = [](std::int64_t low, std::int64_t step) {
    return low > 0 ? fmt::format("{} or {}", low, low + step) : fmt::format("{}", low + step);
  };
  findings.push_back({{"batch.micro", "model.seq_len", "precision.recipe"},
                      fmt::format("{} takes micro-batches of a multiple of {} tokens, and {} x seq_len {} is {}: use "
                                  "batch.micro {}, or model.seq_len {}",
                                  recipe.name, recipe.rows, micro, length, tokens, nearest(below, unit),
                                  nearest(shorter, of_length))});
}

/// Refusals by the recipe's formats, for a model that is otherwise valid.
void add_recipe_findings(const RunConfig& config, std::vector<Finding>& findings) {
  const Recipe& recipe = recipe_of(config.precision);
  if (!recipe.activation) return;
  const auto of_model = [](const Finding& finding) {
    return std::any_of(finding.keys.begin(), finding.keys.end(),
                       [](const std::string& key) { return key.starts_with("model.") || key == "precision.compute"; });
  };
  const bool sound = std::none_of(findings.begin(), findings.end(), of_model);
  add_row_findings(config, recipe, findings);
  if (sound) add_matrix_findings(config, recipe, findings);
}

/// Refusals of heads that this back end's attention does not take.
void add_head_findings(const ModelConfig& model, std::vector<Finding>& findings) {
  if (!model.head_dim.known() || model.head_dim.get() <= most_head_dim()) return;
  findings.push_back({{"model.head_dim", "model.heads", "model.hidden"},
                      fmt::format("heads of {} are wider than the {} that attention takes here: use more heads, or a "
                                  "smaller head_dim",
                                  model.head_dim.get(), most_head_dim())});
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
  add_recipe_findings(config, findings);
  return findings;
}

}  // namespace tessera
