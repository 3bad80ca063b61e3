#include "core/params/param_sync.hpp"

namespace tessera {

ParamSync::ParamSync(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Usage& usage,
                     const Masters& masters, Mesh& mesh, const SyncRules& rules)
    : gather_(rules.gather),
      weights_(device, registry, layout, usage, masters, mesh, rules.gather),
      gradients_(device, registry, layout, usage, mesh, rules) {}

void ParamSync::publish(Stream& stream, Updated&&) {
  // A group that nothing used since the last publish still has its gather to do before its memory is staged anew.
  for (int group : weights_.order_) {
    const WeightState state = weights_.machine(group).state();
    if (state == WeightState::staged || state == WeightState::in_flight) weights_.advance(stream, group);
  }
  weights_.outdate();
  for (int group : weights_.order_) weights_.stage(stream, group);
  if (gather_ == Overlap::off) settle(stream);
}

std::vector<std::uint8_t> ParamSync::state() const {
  std::vector<std::uint8_t> all;
  for (int group : weights_.order_) {
    all.push_back(static_cast<std::uint8_t>(weights_.machine(group).state()));
    all.push_back(static_cast<std::uint8_t>(gradients_.state(group)));
  }
  return all;
}

void ParamSync::settle(Stream& stream) {
  for (int group : weights_.order_)
    if (weights_.machine(group).state() != WeightState::ready) weights_.advance(stream, group);
}

}  // namespace tessera
