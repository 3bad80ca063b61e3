#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "app/training/start/preparation.hpp"
#include "app/training/tell/groupings.hpp"
#include "app/training/tell/hosts_text.hpp"
#include "app/training/tell/plan_text.hpp"
#include "app/training/tell/summary.hpp"
#include "app/verbs/verbs.hpp"
#include "core/config/config.hpp"
#include "core/config/recipe_schedule.hpp"
#include "io/metrics/console.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

/// Text of what full sharding gathers at a time (block or module) and why, with the memory of both ways.
std::string granularity_text(const RunConfig& config, const GranularityPeaks& peaks) {
  const bool modules = gathers_modules(config), chosen = config.gather.granularity == GatherGranularity::automatic;
  const char* const why = modules                     ? "the two copies travel apart, and modules are computed again"
                          : ships_both_copies(config) ? "no module is computed again by itself"
                                                      : "one payload serves both passes";
  return fmt::format("sharding: full, gathered by {} ({}); memory with gather.granularity block {}, module {}\n",
                     modules ? "module" : "block", chosen ? fmt::format("auto: {}", why) : "as asked for",
                     bytes_text(peaks.unit), bytes_text(peaks.module));
}

std::vector<RunPlan> plans_of_segments(const RunConfig& config, int ranks) {
  std::vector<RunPlan> plans;
  for (std::size_t i = 0; i < segments(config); ++i) plans.push_back(resolve_largest(config_of(config, i), ranks));
  return plans;
}

/// Steps, recipe and memory of each segment, a line each. What follows is of the one that needs most memory.
std::string segments_text(const RunConfig& config, const std::vector<RunPlan>& plans) {
  std::string text;
  for (std::size_t i = 0; i < plans.size(); ++i)
    text += fmt::format("segment:  steps {} to {}, recipe {}: {} a rank\n",
                        i == 0 ? 1 : last_step_of(config, i - 1) + 1, last_step_of(config, i),
                        recipe_text(plans[i].config.precision), bytes_text(total(plans[i].memory)));
  return text + "below:    the segment that needs most memory\n";
}

}  // namespace

int run_plan(const PlanOptions& options) {
  if (options.ranks % options.hosts != 0)
    throw Error(Exit::usage, fmt::format("--hosts {}: must divide --ranks {}", options.hosts, options.ranks));
  Deck deck = checked_deck(options.deck, options.overrides);
  settle_for(deck.config, static_cast<int>(options.ranks), static_cast<int>(options.hosts));
  Runtime::plan_for(static_cast<int>(deck.config.run.threads.get()));
  Problems problems;
  for (const Finding& finding : refusals(deck.config, static_cast<int>(options.ranks)))
    problems.add(Exit::deck, deck.provenance.located(finding));
  problems.raise();
  for (const Finding& finding : unnamed_tensors(deck.config, static_cast<int>(options.ranks)))
    problems.add(Exit::deck, deck.provenance.located(finding));
  problems.raise();
  const std::vector<RunPlan> segments = plans_of_segments(deck.config, static_cast<int>(options.ranks));
  const RunPlan& plan = *std::ranges::max_element(segments, {}, [](const RunPlan& one) { return total(one.memory); });
  const std::optional<GranularityPeaks> peaks = granularity_peaks(plan.config, static_cast<int>(options.ranks));
  if (options.format == Format::json) {
    fmt::print("{}\n", plan_json(plan, peaks, static_cast<int>(options.hosts)));
    return 0;
  }
  if (segments.size() > 1) fmt::print("{}", segments_text(deck.config, segments));
  fmt::print("{}groups:   {} of {}, layout {}; {}\n", summary_text(plan),
             counted(static_cast<std::int64_t>(plan.layout.groups().size()), "group"),
             counted(static_cast<std::int64_t>(plan.layout.buckets().size()), "bucket"), hex(plan.layout.hash()),
             options.detail == Detail::all ? "each below" : "--verbose lists them");
  fmt::print("{}", sharding_text(plan));
  if (options.hosts > 1)
    fmt::print("{}{}", hosts_text(plan, static_cast<int>(options.hosts)),
               groupings_text(groupings(deck.config, static_cast<int>(options.ranks), static_cast<int>(options.hosts)),
                              options.memory));
  fmt::print("{}", uneven_text(plan));
  if (peaks) fmt::print("{}", granularity_text(deck.config, *peaks));
  if (const auto mixture = mixture_texts(deck.config.data); !mixture.empty())
    fmt::print("mixture:  {}\n", fmt::join(mixture, ", "));
  if (options.memory > 0) fmt::print("{}", verdict_text(plan, options.memory));
  if (options.detail == Detail::all) fmt::print("\n{}", plan_text(plan));
  return 0;
}

}  // namespace tessera
