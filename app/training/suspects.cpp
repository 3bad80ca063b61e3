#include "app/training/suspects.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/step/step_memory.hpp"
#include "io/files/run_lock.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

std::string device_text() {
  const Gpu gpu = Runtime::gpu();
  return gpu.name.empty() ? "CPU" : gpu.name + " " + gpu.uuid;
}

/// The first of this rank's shards that differs; empty: none.
std::string shard_that_differs(const StepPlan& plan, const StepFingerprint& first, const StepFingerprint& second) {
  for (std::size_t i = 0; i < first.gradients.size(); ++i)
    if (first.gradients[i] != second.gradients[i])
      return "the gradient of " + plan.registry.canonical(plan.registry.datasets()[i]).name + " in its shard";
  return "";
}

/// The first micro-batch of this rank whose sums differ; empty: none.
std::string micro_batch_that_differs(const StepPlan& plan, const StepFingerprint& first,
                                     const StepFingerprint& second) {
  const std::int64_t rank = plan.ranks.world.rank, ranks = plan.ranks.world.size;
  const auto words = static_cast<std::int64_t>(sizeof(StepSums) / sizeof(std::int64_t));
  for (std::int64_t round = 0; round < plan.sizes.rounds; ++round) {
    const auto begin = (rank * plan.sizes.rounds + round) * words;
    if (!std::equal(first.sums.begin() + begin, first.sums.begin() + begin + words, second.sums.begin() + begin))
      return fmt::format("the losses of micro-batch {}", round * ranks + rank + 1);
  }
  return "";
}

}  // namespace

bool confirms_skips(const RunConfig& config, Device& device) {
  const ConfirmSkips asked = config.debug.confirm_skips;
  return asked == ConfirmSkips::always || (asked == ConfirmSkips::automatic && device.compute().native() == nullptr);
}

Judge judge_of_suspects(const StepPlan& plan, Control& control) {
  return [&plan, &control](std::int64_t step, const StepFingerprint& first, const StepFingerprint& second) {
    std::string what = micro_batch_that_differs(plan, first, second);
    if (what.empty()) what = shard_that_differs(plan, first, second);
    std::string mine;
    if (!what.empty())
      mine = fmt::format("rank {} ({}, {}): {}", plan.ranks.world.rank, this_process().host, device_text(), what);
    std::string all;
    for (const std::string& one : control.gather(mine))
      if (!one.empty()) all += "\n  " + one;
    all = control.broadcast(all);
    if (!all.empty())
      throw Error(Exit::machine,
                  fmt::format("step {} would be skipped, and gave other bits when it was computed once more from the "
                              "same state: a machine is at fault. What differed:{}",
                              step, all));
    if (control.rank() == 0)
      fmt::print("step {}: computed once more with the same bits, as a step that is skipped\n", step);
  };
}

}  // namespace tessera
