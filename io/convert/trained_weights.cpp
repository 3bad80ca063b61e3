#include "io/convert/trained_weights.hpp"

#include "core/config/recipe_schedule.hpp"
#include "core/config/treatments.hpp"
#include "core/model/gpt.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/deck/deck.hpp"

namespace tessera {

TrainedWeights trained_weights(const RunConfig& config) {
  ParamRegistry registry(treatment_rules(config));
  const Gpt gpt(registry, GptShape::from(config));
  TrainedWeights weights;
  for (const ParamSpec& spec : registry.specs())
    if (spec.format.codes) weights[spec.canonical.name] = {*spec.format.codes, spec.member[0]};
  return weights;
}

TrainedWeights trained_weights(const Checkpoint& step) {
  const RunConfig config = parse_saved_deck(step.deck(), (step.folder() / deck_file).string()).config;
  return trained_weights(config_at(config, step.manifest().counters.step));  // mutation: codes_of_the_first_recipe
}

}  // namespace tessera
