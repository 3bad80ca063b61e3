#include "app/training/tell/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "app/cli/memory.hpp"
#include "app/training/tell/plan_text.hpp"
#include "core/config/treatments.hpp"
#include "io/metrics/console.hpp"

namespace tessera {
namespace {

/// Text "weights 1.0 GiB, masters ...", largest first, without empty categories.
std::string parts_text(const MemoryReport& memory) {
  std::vector<std::pair<std::int64_t, const char*>> parts;
  for (std::size_t c = 0; c < memory.size(); ++c)
    if (memory[c] > 0) parts.emplace_back(memory[c], name_of(static_cast<Category>(c)));
  std::ranges::stable_sort(parts, std::greater(), &std::pair<std::int64_t, const char*>::first);
  std::string text;
  for (const auto& [bytes, name] : parts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, bytes_text(bytes));
  return text;
}

std::string model_text(const RunPlan& plan) {
  const ModelConfig& model = plan.config.model;
  std::string text = fmt::format("{} parameters in {}: {}, hidden {}, {}, sequences of {}, vocabulary {}",
                                 count_text(static_cast<double>(parameters(plan))),
                                 counted(static_cast<std::int64_t>(plan.registry.size()), "tensor"),
                                 counted(model.layers, "layer"), model.hidden, counted(model.heads, "head"),
                                 model.seq_len, model.vocab.get());
  if (model.moe) text += fmt::format(", {} of {}", model.moe->top_k, counted(model.moe->experts, "expert"));
  return text;
}

std::string work_text(const RunPlan& plan) {
  std::string text = fmt::format(
      "{} a step on {}: {} of {} a rank, {} of them at once", flop_text(plan.flops_per_step),
      counted(plan.ranks.world.size, "rank"), counted(plan.sizes.local(), "sequence"),
      counted(plan.config.model.seq_len, "token"), plan.sizes.micro);
  const double twice = plan.flops_per_step - plan.model_flops_per_step;
  if (twice > 0) text += fmt::format("; {} for recomputation", flop_text(twice));
  const PrecisionConfig& precision = plan.config.precision;
  return text + fmt::format("; compute {}, recipe {}", name_of(precision.compute), recipe_text(precision));
}

/// To what each micro-batch's gradient is rounded before it is summed.
std::string wire_text(const ReduceConfig& reduce) {
  if (reduce.wire == GradientWire::fp32) return "";
  std::string kept;
  for (KeptGradients kind : reduce.keep) kept += fmt::format("{}{}", kept.empty() ? "" : ", ", name_of(kind));
  return fmt::format(", each rounded to {}{}{}", name_of(reduce.wire),
                     reduce.rounding == WireRounding::stochastic ? " at random" : "",
                     kept.empty() ? "" : fmt::format(" but for {}", kept));
}

/// On how many ranks bits are the same, where that is more than one number of them: a line.
std::string sums_text(const RunPlan& plan) {
  if (plan.sync.order != ReduceOrder::batch) return "";
  const std::int64_t micro_batches = plan.sizes.micro_batches(), expert = plan.ranks.experts.size;
  const std::string ranks = expert == 1 ? fmt::format("1 to {} ranks", micro_batches)
                                        : fmt::format("every multiple of {} up to {} ranks", expert, micro_batches);
  const int idle = plan.sync.idle_ranks;
  return fmt::format("sums:     in the order of the batch's {}{}: the same bits on {}{}\n",
                     counted(micro_batches, "micro-batch"), wire_text(plan.config.reduce), ranks,
                     idle == 0 ? "" : fmt::format("; {} idle in the last round", counted(idle, "rank")));
}

std::string travel_text(const RunPlan& plan) {
  std::string text;
  std::int64_t all = 0;
  for (const CollectiveTotal& total : totals_of(plan.collectives)) {
    text += fmt::format(", {} {} in {}", name_of(total.collective), bytes_text(total.bytes),
                        counted(total.calls, "call"));
    all += total.bytes;
  }
  return text.empty() ? "nothing" : fmt::format("{} a step and rank{}", bytes_text(all), text.replace(0, 1, ":"));
}

}  // namespace

std::string flop_text(double flop) {
  const char* units = "kMGTPE";
  for (flop /= 1e3; flop >= 999.5 && units[1] != 0; flop /= 1e3) ++units;
  return fmt::format("{:.3g} {}FLOP", flop, *units);
}

std::vector<CollectiveTotal> totals_of(std::span<const CollectiveCost> costs) {
  std::vector<CollectiveTotal> totals;
  for (Collective kind :
       {Collective::all_gather, Collective::all_to_all, Collective::exchange_rows, Collective::pass_on,
        Collective::all_reduce_max, Collective::all_reduce_sum}) {
    CollectiveTotal total{kind};
    for (const CollectiveCost& cost : costs) {
      if (cost.collective != kind) continue;
      total.calls += cost.count;
      total.bytes += cost.bytes * cost.count;
    }
    if (total.calls > 0) totals.push_back(total);
  }
  return totals;
}

std::string formats_text(const RunConfig& config) {
  std::string text;
  if (quantizes(config))
    for (const auto& [treatment, which] : treated_alike(config))
      text += fmt::format("formats:  {}: {}\n", which, text_of(treatment));
  return text;
}

std::string summary_text(const RunPlan& plan) {
  const int rank = plan.ranks.world.rank;
  std::string text = fmt::format("model:    {}\nwork:     {}\n", model_text(plan), work_text(plan));
  text += fmt::format("memory:   {} a rank{}: {}\n", bytes_text(total(plan.memory)),
                      rank == 0 ? "" : fmt::format(" (rank {}, which needs most)", rank), parts_text(plan.memory));
  if (const std::int64_t snapshot = snapshot_bytes(plan))
    text += fmt::format("snapshot: {} of the host's memory a rank, for saves beside training\n", bytes_text(snapshot));
  return text + fmt::format("received: {}\n{}{}", travel_text(plan), sums_text(plan), formats_text(plan.config));
}

std::string verdict_text(const RunPlan& plan, std::int64_t memory) {
  const std::int64_t needed = total(plan.memory);
  if (needed <= memory)
    return fmt::format("verdict:  fits {}, {} are left\n", bytes_text(memory), bytes_text(memory - needed));
  const auto most = static_cast<Category>(std::ranges::max_element(plan.memory) - plan.memory.begin());
  const bool activations = most == Category::activations;
  const bool whole = plan.sync.weights.sharding == Sharding::optimizer && plan.ranks.world.size > 1;
  const char* const smaller = whole ? "more ranks, sharding full or a smaller model" : "more ranks or a smaller model";
  return fmt::format("verdict:  does not fit {}: {} too much, most of it for {}; use {}\n", bytes_text(memory),
                     bytes_text(needed - memory), name_of(most),
                     activations ? "a smaller batch.micro or recompute.mode full" : smaller);
}

}  // namespace tessera
