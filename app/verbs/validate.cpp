#include <cstdio>

#include <fmt/format.h>

#include "app/training/start/preparation.hpp"
#include "app/training/tell/advice.hpp"
#include "app/verbs/verbs.hpp"

namespace tessera {

int run_validate(const ValidateOptions& options) {
  const Prepared run = examine(options.deck, options.overrides, static_cast<int>(options.ranks));
  print_advice(run.deck);
  for (const std::string& line : run.told) fmt::print(stderr, "{}\n", line);
  fmt::print("{}# corpus:   {}\n", resolved_text(run.deck), corpus_text(run));  // a comment: the output is a deck
  return 0;
}

}  // namespace tessera
