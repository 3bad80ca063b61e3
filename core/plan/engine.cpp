#include "core/plan/engine.hpp"

#include <algorithm>

#include "core/optim/clip.hpp"

namespace tessera {
namespace {

AdamWSettings settings_of(const OptimizerConfig& optimizer) {
  return {optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.weight_decay};
}

}  // namespace

Engine::Engine(Device& device, const RunPlan& plan, Communicator& communicator)
    : device_(device),
      plan_(plan),
      communicator_(communicator),
      stream_(device.compute()),
      masters_(device, plan.layout, communicator.rank()),
      sync_(device, plan.registry, plan.layout, plan.usage, masters_, communicator, plan.sync),
      optimizers_(device, plan.registry, plan.layout, communicator.rank(), settings_of(plan.config.optimizer)),
      memory_(device, communicator.rank(), communicator.size(), plan.local_sequences, plan.config.model.seq_len),
      activations_(device.arena(Category::activations, plan.activation_bytes)) {
  for (int r = 0; r < communicator.size(); ++r) {
    sum_counts_.push_back(StepMemory::sum_words);
    sum_begins_.push_back(r * StepMemory::sum_words);
  }
}

void Engine::initialise() {
  Updated start = masters_.initialise(stream_, plan_.registry, plan_.layout, communicator_.rank(), plan_.config.run.seed);
  optimizers_.initialise(stream_);
  memory_.initialise(stream_);
  sync_.publish(stream_, std::move(start));
}

Pass Engine::pass(GradientSink* gradients) { return {stream_, sync_.weights(), gradients, activations_, memory_.sums()}; }

void Engine::gather_sums() {
  if (communicator_.size() == 1) return;
  const Exchange sums{{}, memory_.all_sums(), sum_counts_, sum_begins_};
  communicator_.submit(stream_, {Collective::all_gather, {&sums, 1}, -1, "sums"}).wait(stream_);
}

void Engine::step(const HostSequences& batch, float rate) {
  const std::int64_t micro = plan_.config.batch.micro;
  const double scale = 1.0 / static_cast<double>(plan_.config.batch.global * plan_.config.model.seq_len);
  memory_.begin(stream_, batch, rate);
  Accumulating sum = sync_.accumulate();
  for (int m = 0; m < plan_.micro_batches; ++m) {
    const Arena::Frame frame(activations_);
    plan_.model.gradient(pass(&sum), memory_.micro_batch(m * micro, micro, scale));  // sum += d loss / d w
  }
  Reduced gradients = std::move(sum).reduce(stream_);  // over ranks, in rank order
  gather_sums();
  if (observer_) observer_->reduced(stream_, gradients);
  Clipped clipped = clip(stream_, std::move(gradients), communicator_, memory_.squares(), memory_.clip(),
                         static_cast<float>(plan_.config.optimizer.clip));
  Updated updated = optimizers_.step(stream_, std::move(clipped), masters_, memory_.clock(), memory_.rate());
  if (observer_) observer_->stepped(stream_);
  sync_.publish(stream_, std::move(updated));  // weight = Q(bf16(master)), gathered now or under the next forward
}

StepReport Engine::evaluate(const HostSequences& sequences) {
  const std::int64_t micro = plan_.config.batch.micro;
  sync_.settle(stream_);
  memory_.begin(stream_, sequences, 0);
  for (std::int64_t first = 0; first < sequences.sequences; first += micro) {
    const Arena::Frame frame(activations_);
    plan_.model.evaluate(pass(nullptr), memory_.micro_batch(first, std::min(micro, sequences.sequences - first), 0));
  }
  gather_sums();
  return memory_.report(stream_);
}

}  // namespace tessera
