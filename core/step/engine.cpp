#include "core/step/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/device/timeline.hpp"
#include "core/optim/clip.hpp"

namespace tessera {
namespace {

constexpr std::uint32_t exponent = 0x7F800000, mantissa_bit = 1 << 20;

/// Fault injection: sets bits of a tensor's first element, or clears them if all are set. Waits for the device.
void damage(Device& device, Stream& stream, const Tensor& values, std::uint32_t which) {
  if (values.elements() == 0) return;
  std::uint32_t bits = 0;
  device.download(stream, &bits, values.flat(0, 1));
  bits = (bits & which) == which ? bits & ~which : bits | which;
  device.upload(stream, values.flat(0, 1), &bits);
}

/// Fault injection: passes gradients on, and damages bits of the first that is written.
class FaultySink final : public GradientSink {
 public:
  FaultySink(Device& device, GradientSink& sink, std::uint32_t bits) : device_(device), sink_(sink), bits_(bits) {}
  Gradient slot(ParamId param) override {
    const Gradient given = sink_.slot(param);
    if (!done_) first_ = given.sum;
    return given;
  }
  void written(Stream& stream, ParamId param) override {
    if (!std::exchange(done_, true)) damage(device_, stream, first_.flat(0, first_.elements()), bits_);
    sink_.written(stream, param);
  }

 private:
  Device& device_;
  GradientSink& sink_;
  std::uint32_t bits_;
  Tensor first_;
  bool done_ = false;
};

}  // namespace

Engine::Engine(Device& device, const StepPlan& plan, Mesh& mesh)
    : device_(device),
      plan_(plan),
      mesh_(mesh),
      stream_(device.compute()),
      built_(device, plan, mesh),
      optimizers_(rules_of(plan.optimizer, plan.balance, device, plan.registry, plan.layout, mesh.ranks()),
                  plan.layout),
      memory_(device, mesh.ranks().world, plan.sizes, std::ssize(optimizers_.counters())),
      repeated_(device, mesh) {
  if (plan.optimizer.ema > 0) average_.emplace(device, plan.layout, mesh.ranks(), plan.optimizer.ema);
  const auto& moe = plan.model.shape().moe;
  if (moe && moe->group.size > 1) exchange_.emplace(device, mesh.experts(), moe->experts);
  digests_ = device.allocate(Category::staging, DType::u64, {std::ssize(fresh_state().tensors)});
  for (int r = 0; r < mesh.world().size(); ++r) {
    sum_counts_.push_back(memory_.words_of_rank());
    sum_begins_.push_back(r * memory_.words_of_rank());
  }
  if (moe && moe->by_peers()) exchange_->reach(built_.reached);
}

void Engine::initialise() {
  initialise([](StateDict&) {});
}

void Engine::initialise(const std::function<void(StateDict&)>& fill) {
  Updated start = built_.initialise(digests_, fill);
  optimizers_.initialise(stream_);
  if (average_) average_->initialise(stream_, built_.masters);
  memory_.initialise(stream_, optimizers_.words_of(optimizers_.counters()));
  built_.sync.publish(stream_, std::move(start));  // mutation: masters_from_weights
}

StateDict Engine::fresh_state() const {
  StateDict state = built_.state(digests_);
  optimizers_.visit_state(
      [&](const StateSlot& slot) { state.add(slot, plan_.registry, plan_.layout, mesh_.ranks()); });
  if (average_) state.add({Average::slot, average_->slices()}, plan_.registry, plan_.layout, mesh_.ranks());
  state.counters.rules = optimizers_.counters();
  return state;
}

StateDict Engine::state() {
  StateDict state = fresh_state();
  state.counters.rules = optimizers_.counters_of(report(memory_.end(stream_)).counters);
  state.before_update = &before_update_;
  return state;
}

void Engine::restore(const std::function<void(StateDict&)>& fill) {
  StateDict state = fresh_state();
  optimizers_.initialise(stream_);
  if (average_) average_->clear(stream_);
  Updated loaded = built_.masters.restore(stream_, [&] { fill(state); });
  memory_.initialise(stream_, optimizers_.words_of(state.counters.rules));  // mutation: counters_begin_anew_at_load
  built_.sync.publish(stream_, std::move(loaded));
}

Pass Engine::pass(GradientSink* gradients, std::int64_t round) {
  StepSums* sums = memory_.sums(round);
  return {stream_, built_.sync, gradients,
          built_.activations, sums, observer_ && gradients ? &sums->logits : nullptr,
          {plan_.draws_seed, memory_.step()}, exchange_ ? &*exchange_ : nullptr,
          gradients && counts(round) ? memory_.routing() : RoutingRecords{}};  // mutation: padding_is_recorded
}

bool Engine::counts(std::int64_t round) const {
  const RankIn& world = mesh_.ranks().world;
  return round * world.size + world.rank < plan_.sizes.micro_batches();
}

void Engine::gather_sums() {
  if (mesh_.world().size() == 1) return;
  const Exchange sums{{}, memory_.all_sums(), sum_counts_, sum_begins_};
  mesh_.world().submit(stream_, {Collective::all_gather, {&sums, 1}, -1, "sums"}).wait(stream_);
}

StepReport Engine::report(Turn turn) {
  StepReport report = memory_.report(turn);
  if (exchange_) require_room(report);
  return report;
}

void Engine::require_room(const StepReport& report) const {
  const auto refused = [](const StepSums& sums) { return sums.arrivals.refused != 0; };
  if (std::ranges::none_of(report.sums, refused)) return;
  const auto share = [](const StepSums& sums) { return sums.arrivals.most; };
  const auto most = std::ranges::max_element(report.sums, {}, share);
  throw Error(Exit::numerical,
              fmt::format("parallel.expert_room: {} is too small: rank {} would have received {:.3f} times its even "
                          "share of a layer's rows; set {:.2f} or more, or leave the key out, which gives room for any "
                          "routing",
                          plan_.model.shape().moe->room, (most - report.sums.begin()) % mesh_.world().size(),
                          most->arrivals.most, std::ceil(most->arrivals.most * 100) / 100));
}

Turn Engine::step(const HostSequences& batch, const StepScalars& scalars) {
  const Region step(stream_, RegionName::step);
  require(stream_.dry() || !plan_.sizes.given || batch.sequences == 0 || !batch.given.empty(), "Engine::step",
          "every batch of a plan with given choices holds them");
  if (observer_) observer_->begun();
  memory_.begin(stream_, batch, scalars, target_scale_of(batch));
  step_ = static_cast<std::int64_t>(batch.step);
  const bool checked = batch.checked;
  const auto work = [this, checked] {
    if (std::exchange(redo_, false)) {
      { const Reduced dropped = accumulate().reduce(stream_); }
      memory_.clear_sums(stream_);  // mutation: redo_keeps_sums
    }
    Reduced gradients = reduce(checked ? spot_checked() : accumulate());
    decide(gradients);
    Updated updated = update(confirmed(std::move(gradients)));
    const Region region(stream_, RegionName::publish);
    // weight = Q(bf16(master)), gathered now or under the next forward
    built_.sync.publish(stream_, std::move(updated));
  };
  if (replayable() && !checked)
    repeated_.run(built_.sync.state(), work, [this] { built_.sync.replayed(); });
  else
    work();
  fault_.reset();
  return memory_.end(stream_);
}

double Engine::target_scale_of(const HostSequences& batch) const {
  if (!batch.counted) return loss_scale();  // mutation: answers_weigh_as_all_tokens
  return *batch.counted > 0 ? 1.0 / static_cast<double>(*batch.counted) : 0;
}

bool Engine::replayable() const {
  const bool as_planned = !fault_ && !once_ && !redo_ && shown_to_.empty();
  const bool waits = exchange_ && exchange_->waits();
  return plan_.graph && as_planned && !waits && !observer_ && !judge_ && !built_.sync.observed() &&
         !device_.timeline().recording() && mesh_.on_streams();
}

/// The step's gradients. `digests`, unless null: those of its first micro-batch are added there.
Accumulating Engine::accumulate(std::uint64_t* digests) {
  const Region region(stream_, RegionName::gradient);
  Accumulating sum = built_.sync.accumulate({plan_.draws_seed, memory_.step()});
  add_first(sum, memory_.micro_batch(0, plan_.sizes.micro, loss_scale()), 0, digests);
  for (std::int64_t round = 1; round < plan_.sizes.rounds; ++round) {
    const Arena::Frame frame(built_.activations);
    plan_.model.gradient(shown(pass(&sum, round), round), memory_.micro_batch(round, plan_.sizes.micro, loss_scale()));
  }
  shown_to_.clear();  // what is computed again for a check is not shown
  return sum;
}

/// The pass of a round, shown to the step's observer unless the rank is idle in the round.
Pass Engine::shown(Pass pass, std::int64_t round) const {
  if (shown_to_.empty() || !counts(round)) return pass;  // mutation: padding_is_measured
  for (FactorObserver* observer : shown_to_) observer->begin_micro_batch();
  pass.observers = shown_to_;
  return pass;
}

/// Adds the first micro-batch's gradient, sum += d loss / d w, with the faults of a spot check's computation.
void Engine::add_first(Accumulating& sum, const MicroBatch& batch, int computation, std::uint64_t* digests) {
  const Arena::Frame frame(built_.activations);
  const std::optional<Fault> fault = fault_in(computation);
  GradientSink* sink = &sum;
  std::optional<DigestingSink> digesting;
  if (digests) sink = &digesting.emplace(plan_, digests, *sink);
  std::optional<FaultySink> faulty;
  if (fault >= Fault::bit || fault == Fault::gradient)
    sink = &faulty.emplace(device_, *sink, fault == Fault::gradient ? exponent : mantissa_bit);
  Pass one = computation == 0 ? shown(pass(sink), 0) : pass(sink);
  one.fault = fault_;
  if (fault == Fault::activation) one.fault = std::numeric_limits<float>::infinity();
  if (fault == Fault::number) one.fault = 0.5f;
  plan_.model.gradient(one, batch);
}

std::optional<Engine::Fault> Engine::fault_in(int computation) const {
  if (!once_ || once_ == Fault::bit_always) return once_;
  return computation == (once_ == Fault::bit_for_another ? 1 : 0) ? once_ : std::nullopt;
}

/// The step's gradients, of which other ranks have computed the first micro-batch too, with the same bits.
Accumulating Engine::spot_checked() {
  const StepFingerprint second = computed_again(1);
  Accumulating sum = accumulate(cleared_digests().as<std::uint64_t>());
  const StepFingerprint first = fingerprint(memory_.first_sums());
  spot_judge_(step_, first, second, [&] {
    { const Accumulating dropped = std::move(sum); }
    return computed_again(2);
  });
  return sum;
}

/// Computes a micro-batch of a spot check and drops it.
StepFingerprint Engine::computed_again(int computation) {
  const Region region(stream_, RegionName::gradient);
  Accumulating dropped = built_.sync.accumulate({plan_.draws_seed, memory_.step()});
  memory_.clear_sums(stream_);
  const int of = plan_.ranks.further_on(computation);
  add_first(dropped, memory_.micro_batch_of(of, computation, loss_scale()), computation,
            cleared_digests().as<std::uint64_t>());
  const StepFingerprint made = fingerprint(memory_.first_sums());
  memory_.clear_sums(stream_);  // mutation: spot_checks_count_in_the_sums
  return made;
}

Reduced Engine::reduce(Accumulating&& sum) {
  const Region region(stream_, RegionName::reduce);
  Reduced gradients = std::move(sum).reduce(stream_);  // summed over ranks
  if (std::exchange(once_, std::nullopt) == Fault::shard) damage(device_, stream_, gradients.shard({0}), exponent);
  gather_sums();
  return gradients;
}

/// Computes the norm and whether the step is skipped.
void Engine::decide(const Reduced& gradients) {
  const Region region(stream_, RegionName::update);
  decide_clipping(stream_, gradients, plan_.layout, mesh_.world(), memory_.squares(), memory_.clip(),
                  static_cast<float>(plan_.optimizer.clip), memory_.norm_limit(),
                  quantizes() ? memory_.counted_sums() : Tensor{}, memory_.routing().words);
}

/// What decide() found. Waits for the device; the host's own work is done already.
ClipResult Engine::decided() {
  if (!stream_.native()) return *memory_.clip();
  ClipResult clip;
  device_.download(stream_, &clip, {memory_.clip(), DType::u8, {sizeof clip}});
  return clip;
}

/// Zeroed digests of gradients, by dataset.
Tensor Engine::cleared_digests() {
  const Tensor digests = digests_.flat(0, std::ssize(plan_.registry.datasets()));
  before_update_.hold(stream_);  // a snapshot's digests lie there until they have been copied
  clear(stream_, digests);
  return digests;
}

/// The digests of gradients as they stand, with these sums. Waits for the device.
StepFingerprint Engine::fingerprint(const Tensor& sums) {
  StepFingerprint made;
  made.sums.resize(static_cast<std::size_t>(sums.elements()));
  device_.download(stream_, made.sums.data(), sums);
  made.gradients.resize(plan_.registry.datasets().size());
  device_.download(stream_, made.gradients.data(), digests_.flat(0, std::ssize(made.gradients)));
  return made;
}

/// That of reduced gradients, in this rank's shards.
StepFingerprint Engine::fingerprint(const Reduced& gradients) {
  add_digests(stream_, cleared_digests().as<std::uint64_t>(), plan_,
              [&](BucketId b) { return gradients.shard(b); });
  return fingerprint(memory_.all_sums());
}

/// Computes the step once more if it would be skipped, and has both computations judged.
Reduced Engine::confirmed(Reduced&& gradients) {
  if (!judge_ || decided().skip == 0) return std::move(gradients);
  const StepFingerprint first = fingerprint(gradients);
  { const Reduced dropped = std::move(gradients); }
  memory_.clear_sums(stream_);
  Reduced again = reduce(accumulate());
  decide(again);
  judge_(step_, first, fingerprint(again));
  return again;
}

Updated Engine::update(Reduced&& gradients) {
  const Region region(stream_, RegionName::update);
  if (observer_) observer_->reduced(stream_, gradients);
  if (StepObserver* const once = std::exchange(watched_by_, nullptr)) once->reduced(stream_, gradients);
  Clipped clipped = std::move(gradients).clipped(stream_, memory_.clip());
  before_update_.hold(stream_);
  // mutation: averages_before_the_step.1
  Updated updated = optimizers_.step(stream_, std::move(clipped), built_.masters, {memory_.rate(), memory_.counters()});
  if (average_) average_->step(stream_, built_.masters, memory_.clip());  // mutation: averages_before_the_step.2
  if (observer_) observer_->stepped(stream_);
  return updated;
}

void Engine::with_averages(const std::function<void()>& work) {
  require(average_.has_value(), "Engine::with_averages", "optimizer.ema keeps averages");
  exchange_averages();
  work();
  exchange_averages();  // mutation: averages_stay_in_place
}

void Engine::exchange_averages() {
  built_.sync.unshard_all(stream_);  // gathers under way may read masters
  before_update_.hold(stream_);
  averaged_ = !averaged_;
  built_.sync.publish(stream_, built_.masters.exchange(stream_, average_->slices()));
}

Turn Engine::evaluate(const HostSequences& micro_batch) {
  require(micro_batch.sequences == plan_.sizes.micro, "Engine::evaluate", "takes one micro-batch, padding included");
  const Forward forward = built_.sync.forward(stream_);
  memory_.begin(stream_, micro_batch);
  {
    const Arena::Frame frame(built_.activations);
    MicroBatch batch = memory_.micro_batch(0, micro_batch.sequences, 0);
    batch.padding = micro_batch.padding;
    // mutation: evaluations_follow_a_record
    batch.choices.given = {};  // routers choose by themselves
    batch.first_sequence = 0;
    plan_.model.evaluate(pass(nullptr), batch);
  }
  StepSums* const sums = memory_.sums(0);
  // mutation: evaluation_hides_not_finite
  if (quantizes()) spoil(stream_, &sums->loss, {&sums->not_finite, DType::u64, {1}});
  gather_sums();
  return memory_.end(stream_);
}

std::vector<float> Engine::next_logits(const std::vector<std::int32_t>& ids) {
  const auto length = static_cast<std::size_t>(plan_.sizes.length);
  require(!ids.empty() && ids.size() <= length, "Engine::next_logits", "takes 1 to seq_len tokens");
  HostSequences sequence{ids, {}, 1};
  sequence.ids.resize(length);
  sequence.targets.resize(length);
  const Forward forward = built_.sync.forward(stream_);
  memory_.begin(stream_, sequence);
  const Arena::Frame frame(built_.activations);
  const Tensor logits = built_.activations.keep(DType::f32, {plan_.model.shape().vocabulary});
  plan_.model.next_logits(pass(nullptr), memory_.micro_batch(0, 1, 0).ids, static_cast<std::int64_t>(ids.size()) - 1,
                          logits);
  if (exchange_) {
    gather_sums();
    report(memory_.end(stream_));
  }
  std::vector<float> values(static_cast<std::size_t>(logits.elements()));
  device_.download(stream_, values.data(), logits);
  return values;
}

}  // namespace tessera
