#include <cstdio>

#include <fmt/format.h>

#include "app/training/preparation.hpp"
#include "app/verbs/verbs.hpp"

namespace tessera {

int run_validate(const ValidateOptions& options) {
  const Deck deck = sound_deck(options.deck, options.overrides);
  for (const Finding& finding : advise(deck.config))
    fmt::print(stderr, "{} (allowed)\n", deck.provenance.located(finding));
  fmt::print("{}", resolved_text(deck));
  return 0;
}

}  // namespace tessera
