#include <utility>

#include "core/device/region.hpp"
#include "core/params/param_sync.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/reduce/reduce.hpp"

/// The gradients' half of ParamSync: gradient accumulation, then a reduce-scatter in rank order,
/// ((g0 + g1) + g2) + ..., as an all-to-all of shards and a local sum; a round at a time, as the schedule's reductions
/// say. No gradients are cleared: a round's first write has beta 0, and elements that were never
/// written are zeroed on the edge into Reducing.
namespace tessera {

void ParamSync::restart() {
  summed_ = {};
  for (Event& sent : sent_) sent = {};
  oldest_ = 0;  // nothing is in flight; so every step uses the receive slots in the same order, as a capture requires
  for (ParamGroup& group : groups_) {
    group.round = 0;
    begin_round(group);
  }
}

/// Expects the contributions of the group's next round; none behind the last.
void ParamSync::begin_round(const ParamGroup& group) {
  const bool more = group.round < group.reductions.size();
  writes_.begin_round(group.id, more ? schedule_.reductions[group.reductions[group.round]].micro_batches : 0);
}

/// Before a round's first write to its slot: ends the gather of bf16 that is staged there, and orders `stream` behind
/// the collective that last read the slot.
void ParamSync::claim_gradients(Stream& stream, const ParamGroup& group) {
  const Reduction& reduction = schedule_.reductions[group.reductions[group.round]];
  if (reduction.after != VisitId{} && in_transit(group)) open(stream, group.pool);
  const auto flies = [&] {
    for (std::size_t i = 0; i < in_flight_; ++i)
      if (flights_[(oldest_ + i) % receive_slots].reduction->slot == reduction.slot) return true;
    return false;
  };
  while (flies()) finish_oldest_reduction(stream);
  stream.wait(std::exchange(sent_[static_cast<std::size_t>(reduction.slot)], {}));
}

Gradient ParamSync::slot(ParamId param) {
  ParamGroup& group = group_of(param);
  if (group.gradients.state() != GradientState::accumulating) {
    if (group.round == group.reductions.size())
      throw StateError(group.id, group.gradients.epoch(), name_of(group.gradients.state()),
                       name_of(GradientState::accumulating));
    claim_gradients(device_.compute(), group);
    group.gradients.to(GradientState::accumulating);
  }
  const Placement& place = layout_.place(param);
  const ParamSpec& spec = registry_[param];
  const float beta = writes_.written(param) ? 1.0f : 0.0f;
  return {bucket(place.bucket).gradients.flat(place.offset.value, spec.member_elements()).view(spec.member), beta,
          spec.members, layout_.member_stride(param)};
}

void ParamSync::written(Stream& stream, ParamId param) {
  ParamGroup& group = group_of(param);
  require(group.gradients.state() == GradientState::accumulating, "Gradients", "a contribution came without its slot");
  require(writes_.expects(param), "Gradients", "a gradient got more contributions than the dry pass saw");
  if (!writes_.completes(param)) return;
  if (schedule_.reductions[group.reductions[group.round]].begin != BeginAt::last_write) return;
  start_reduction(stream, group);
  if (rules_.reduce == Overlap::off && in_flight_ > 0) finish_oldest_reduction(stream);
}

/// Zeroes a bucket's gaps and padding, and parameters that no micro-batch contributed to: they may hold old values.
void ParamSync::fill_unwritten(Stream& stream, const ParamBucket& own) {
  const Bucket& bucket = layout_.buckets()[own.id];
  std::int64_t end = 0;
  for (const Placement& p : bucket.members) {
    if (!writes_.written(p.param)) continue;
    if (p.offset.value > end) clear(stream, own.gradients.flat(end, p.offset.value - end));
    end = (p.offset + p.size).value;
  }
  if (bucket.size.value > end) clear(stream, own.gradients.flat(end, bucket.size.value - end));
}

/// Ends a round: starts its reduction. The group's next round may begin.
void ParamSync::start_reduction(Stream& stream, ParamGroup& group) {
  const Region region(stream, RegionName::reduce);
  const Reduction& reduction = schedule_.reductions[group.reductions[group.round]];
  group.gradients.to(GradientState::reducing);
  for (const ParamBucket& own : group.buckets) fill_unwritten(stream, own);
  ++group.round;
  begin_round(group);
  if (group.rank.size == 1) return add_up_alone(stream, reduction);
  if (in_flight_ == receive_slots) finish_oldest_reduction(stream);
  const std::size_t slot = (oldest_ + in_flight_++) % receive_slots;
  // Submitted on the copies' stream: ordered behind backward's writes on `stream`, and behind the local sum that read
  // the receive slot before.
  Stream& copies = device_.copies();
  copies.wait(stream.record());
  const Operation exchange{Collective::all_to_all, group.reduction[slot], group.id.value, "gradients"};
  flights_[slot] = {&reduction, mesh_.of(group.processes).submit(copies, exchange), stream.launches()};
}

/// Adds a round's gradients to the running sum of a rank that shares them with none. Gradients in a slot of their own
/// are the sum already.
void ParamSync::add_up_alone(Stream& stream, const Reduction& reduction) {
  if (schedule_.gradient_slots[static_cast<std::size_t>(reduction.slot)].residency == Residency::resident) return;
  Stream& copies = device_.copies();
  copies.wait(stream.record());
  add_up(copies, reduction, {});
  sent_[static_cast<std::size_t>(reduction.slot)] = summed_ = copies.record();
}

/// Waits for the oldest reduction and sums it. The local sum runs on the copies' stream, so that backward does not
/// wait.
void ParamSync::finish_oldest_reduction(Stream& stream) {
  Stream& copies = device_.copies();
  const Region region(copies, RegionName::reduce);
  Flight& flight = flights_[oldest_];
  if (stream.launches() > flight.launches_before) ++overlapped_.reductions;
  flight.pending.wait(copies);
  add_up(copies, *flight.reduction, groups_[flight.reduction->group].reduction[oldest_]);
  sent_[static_cast<std::size_t>(flight.reduction->slot)] = summed_ = copies.record();
  oldest_ = (oldest_ + 1) % receive_slots;
  --in_flight_;
}

/// Sums a group's shards in rank order, and assigns them or adds them to the running sum.
void ParamSync::add_up(Stream& stream, const Reduction& reduction, std::span<const Exchange> received) {
  const ParamGroup& group = groups_[reduction.group];
  for (std::size_t i = 0; i < group.buckets.size(); ++i) {
    const ParamBucket& own = group.buckets[i];
    const Tensor mine = layout_.buckets()[own.id].slice(own.gradients, mesh_.ranks());
    const Tensor others = received.empty() ? mine.flat(0, 0).view({0, mine.elements()}) : received[i].receive;
    const RankParts parts{mine, others, group.rank.rank, reduction.idle};
    (reduction.sum == SumInto::add ? add_in_order : sum_in_order)(stream, own.gradient_shard, parts);
  }
}

/// Brings every group to Reduced: starts the reductions that backward has not started, waits for all.
void ParamSync::reduce(Stream& stream) {
  end_pass();
  for (ParamGroup& group : groups_) {
    const GradientState state = group.gradients.state();
    if (state != GradientState::accumulating && state != GradientState::empty) continue;
    if (state == GradientState::empty) claim_gradients(stream, group);
    start_reduction(stream, group);
    if (rules_.reduce == Overlap::off && in_flight_ > 0) finish_oldest_reduction(stream);
  }
  while (in_flight_ > 0) finish_oldest_reduction(stream);
  {
    const Region region(stream, RegionName::waiting);
    stream.wait(summed_);
  }
  for (ParamGroup& group : groups_) group.gradients.to(GradientState::reduced);
}

void ParamSync::drop() {
  for (; in_flight_ > 0; --in_flight_) {
    flights_[oldest_].pending = Pending();
    oldest_ = (oldest_ + 1) % receive_slots;
  }
  device_.compute().wait(summed_);  // running sums must end before the next step's writes
  for (ParamGroup& group : groups_) {
    if (group.gradients.state() == GradientState::reducing) group.gradients.to(GradientState::reduced);
    if (group.gradients.state() != GradientState::empty) group.gradients.to(GradientState::empty);
  }
  restart();
}

void ParamSync::release() {
  for (ParamGroup& group : groups_) group.gradients.to(GradientState::empty);
  restart();
}

}  // namespace tessera
