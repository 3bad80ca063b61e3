#include <cstdio>

#include <fmt/format.h>

#include "app/training/plan_text.hpp"
#include "app/training/preparation.hpp"
#include "app/verbs/verbs.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {

int run_plan(const PlanOptions& options) {
  const Deck deck = sound_deck(options.deck, options.overrides);
  Runtime::plan_for(static_cast<int>(deck.config.run.threads.get()));
  Problems problems;
  for (const Finding& finding : refusals(deck.config, static_cast<int>(options.ranks)))
    problems.add(Exit::deck, deck.provenance.located(finding));
  problems.raise();
  const RunPlan plan = resolve_largest(deck.config, static_cast<int>(options.ranks));
  const std::optional<GranularityPeaks> peaks = granularity_peaks(deck.config, static_cast<int>(options.ranks));
  fmt::print("{}\n", options.format == Format::json ? plan_json(plan, peaks) : plan_text(plan, peaks));
  return 0;
}

}  // namespace tessera
