#include <cstdio>

#include <fmt/format.h>

#include "app/cli/threads.hpp"
#include "app/verbs/verbs.hpp"

namespace tessera {

int run_validate(const ValidateOptions& options) {
  Problems problems;
  Deck deck = read_deck(options.deck, options.overrides, problems);
  problems.raise();
  deck.config.run.threads.fill(host_threads(1));
  for (const Finding& finding : advise(deck.config))
    fmt::print(stderr, "{} (allowed)\n", deck.provenance.located(finding));
  fmt::print("{}", resolved_text(deck));
  return 0;
}

}  // namespace tessera
