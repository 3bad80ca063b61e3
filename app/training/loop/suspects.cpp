#include "app/training/loop/suspects.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/step/step_memory.hpp"
#include "io/files/run_lock.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

std::string device_text() {
  const Gpu gpu = Runtime::gpu();
  return gpu.name.empty() ? "CPU" : gpu.name + " " + gpu.uuid;
}

std::string this_rank(const StepPlan& plan) {
  return fmt::format("rank {} ({}, {})", plan.ranks.world.rank, this_process().host, device_text());
}

std::string gradient_of(const StepPlan& plan, std::size_t dataset) {
  return "the gradient of " + plan.registry.canonical(plan.registry.datasets()[dataset]).name;
}

/// The first of this rank's shards that differs; empty: none.
std::string shard_that_differs(const StepPlan& plan, const StepFingerprint& first, const StepFingerprint& second) {
  for (std::size_t i = 0; i < first.gradients.size(); ++i)
    if (first.gradients[i] != second.gradients[i])
      return gradient_of(plan, i) + " in its shard";
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

/// A computation of a spot check as text of equal length on all ranks: sums, then digests.
std::string text_of(const StepFingerprint& one) {
  std::string text(reinterpret_cast<const char*>(one.sums.data()), one.sums.size() * sizeof one.sums[0]);
  return text.append(reinterpret_cast<const char*>(one.gradients.data()),
                     one.gradients.size() * sizeof one.gradients[0]);
}

/// What differs between two such texts, first on the way back from the loss.
std::string first_on_the_way_back(const StepPlan& plan, const std::string& a, const std::string& b) {
  if (a.compare(0, sizeof(StepSums), b, 0, sizeof(StepSums)) != 0) return "the losses";
  std::size_t dataset = plan.registry.datasets().size();
  const auto equal = [&](std::size_t i) {
    const std::size_t word = sizeof(std::uint64_t), begin = sizeof(StepSums) + i * word;
    return a.compare(begin, word, b, begin, word) == 0;
  };
  while (dataset > 1 && equal(dataset - 1)) --dataset;
  return gradient_of(plan, dataset - 1);
}

/// The ranks that computed a rank's first micro-batch in a spot check, and what each of them got.
struct Spot {
  std::array<int, spot_computations> ranks;
  std::array<std::string, spot_computations> got;

  /// Who is at fault, where the first two differ.
  std::string verdict() const {
    const auto [first, second, third] = ranks;
    const std::string of_first = fmt::format("rank {} is at fault", first);
    const std::string of_second = fmt::format("rank {} is at fault", second);
    if (first == second || got[2] == got[1]) return of_first;
    if (got[2] != got[0]) return fmt::format("and rank {} gets other bits again", third);
    return third != first ? of_second : fmt::format("{}, or rank {} always errs in the same way", of_second, first);
  }
};

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
    if (!what.empty()) mine = this_rank(plan) + ": " + what;
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

SpotJudge judge_of_spot_checks(const StepPlan& plan, Control& control) {
  return [&plan, &control](std::int64_t step, const StepFingerprint& first, const StepFingerprint& second,
                           const std::function<StepFingerprint()>& last) {
    const int ranks = plan.ranks.world.size, expert = plan.ranks.experts.size;
    std::array got = {control.gather(text_of(first)), control.gather(text_of(second)), std::vector<std::string>()};
    const auto by = [&](int rank, int computation) {
      return Ranks::in_world(ranks, rank, expert).further_on(-computation);
    };
    std::vector<int> differ;
    for (int rank = 0; rank < ranks; ++rank)
      if (got[0][static_cast<std::size_t>(rank)] != got[1][static_cast<std::size_t>(by(rank, 1))])
        differ.push_back(rank);
    if (differ.empty()) return;
    got[2] = control.gather(text_of(last()));
    const std::vector<std::string> names = control.gather(this_rank(plan));
    std::string all;
    for (int rank : differ) {
      Spot spot;
      for (int k = 0; k < spot_computations; ++k) {
        const auto n = static_cast<std::size_t>(k);
        spot.ranks[n] = by(rank, k);
        spot.got[n] = got[n][static_cast<std::size_t>(spot.ranks[n])];
      }
      all += fmt::format("\n  micro-batch {}, {} by {} and by {}: {}", rank + 1,
                         first_on_the_way_back(plan, spot.got[0], spot.got[1]),
                         names[static_cast<std::size_t>(spot.ranks[0])],
                         names[static_cast<std::size_t>(spot.ranks[1])], spot.verdict());
    }
    if (expert > 1) all += "\nRanks of one expert group compute from each other's rows: any of them may be meant.";
    throw Error(Exit::machine,
                fmt::format("step {}: a micro-batch that was computed twice has other bits: a machine is at fault, and "
                            "nothing of the step is kept. What differed:{}",
                            step, all));
  };
}

}  // namespace tessera
