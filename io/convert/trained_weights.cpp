#include "io/convert/trained_weights.hpp"

#include "core/config/treatments.hpp"
#include "core/model/gpt.hpp"

namespace tessera {

TrainedWeights trained_weights(const RunConfig& config) {
  ParamRegistry registry(treatment_rules(config));
  const Gpt gpt(registry, GptShape::from(config));
  TrainedWeights weights;
  for (const ParamSpec& spec : registry.specs())
    if (spec.format.codes) weights[spec.canonical.name] = {*spec.format.codes, spec.member[0]};
  return weights;
}

}  // namespace tessera
