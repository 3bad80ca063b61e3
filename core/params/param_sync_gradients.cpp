#include <utility>

#include "core/device/region.hpp"
#include "core/params/param_sync.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/reduce/reduce.hpp"

/// The gradients' half of ParamSync: gradient accumulation, then a reduce-scatter in rank order,
/// ((g0 + g1) + g2) + ..., as an all-to-all of slices and a local sum, or the library's own. No gradients are cleared:
/// the first write has beta 0, and elements that were never written are zeroed on the edge into Reducing. Under full
/// sharding each micro-batch is reduced by itself, from memory of a pool, and added to the slice.
namespace tessera {

void ParamSync::restart() {
  summed_ = {};
  oldest_ = 0;  // nothing is in flight; so every step uses the receive slots in the same order, as a capture requires
  for (ParamGroup& group : groups_) {
    restart(group);
    group.begun = group.summed = 0;
    group.sent = {};
  }
}

/// Resets the counts of contributions, for the next step or (pooled) micro-batch.
void ParamSync::restart(ParamGroup& group) {
  group.unfinished = 0;
  for (const ParamBucket& own : group.buckets)
    for (const Placement& p : layout_.buckets()[own.id].parameters()) {
      contributions_[p.param].written = 0;
      group.unfinished += contributions_[p.param].expected > 0 ? 1 : 0;
    }
}

/// Lends a group its slot of the gradient pool, ordered behind the collective that last read that slot.
void ParamSync::claim_gradients(Stream& stream, ParamGroup& group) {
  require(group.begun < rules_.micro_batches, "Gradients", "a gradient got more contributions than the dry pass saw");
  ++group.begun;
  for (ParamGroup& other : groups_) {
    if (!other.pooled() || other.processes != group.processes || other.pool_slot != group.pool_slot) continue;
    const auto flies = [&] {
      for (std::size_t i = 0; i < in_flight_; ++i)
        if (flights_[(oldest_ + i) % receive_slots].group == &other) return true;
      return false;
    };
    while (flies()) finish_oldest_reduction(stream);
    stream.wait(std::exchange(other.sent, {}));
  }
}

Gradient ParamSync::slot(ParamId param) {
  ParamGroup& group = group_of(param);
  if (group.gradients.state() != GradientState::accumulating) {
    end_lease(device_.compute(), group);
    if (group.pooled()) claim_gradients(device_.compute(), group);
    group.gradients.to(GradientState::accumulating);
  }
  const Placement& place = layout_.place(param);
  const ParamSpec& spec = registry_[param];
  const float beta = contributions_[param].written == 0 ? 0.0f : 1.0f;
  return {bucket(place.bucket).gradients.flat(place.offset.value, spec.member_elements()).view(spec.member), beta,
          spec.members, layout_.member_stride(param)};
}

void ParamSync::written(Stream& stream, ParamId param) {
  ParamGroup& group = group_of(param);
  Contributions& contributions = contributions_[param];
  require(group.gradients.state() == GradientState::accumulating, "Gradients", "a contribution came without its slot");
  require(contributions.written < contributions.expected, "Gradients",
          "a gradient got more contributions than the dry pass saw");
  if (++contributions.written < contributions.expected) return;
  if (--group.unfinished > 0) return;
  if (rules_.reduce == Overlap::on || group.pooled()) begin_reduction(stream, group);
  if (rules_.reduce == Overlap::off && group.pooled()) finish_oldest_reduction(stream);
}

/// Zeroes a bucket's gaps and padding, and parameters that no micro-batch contributed to: they may hold old values.
void ParamSync::fill_unwritten(Stream& stream, const ParamBucket& own) {
  const Bucket& bucket = layout_.buckets()[own.id];
  std::int64_t end = 0;
  for (const Placement& p : bucket.members) {
    if (contributions_[p.param].written == 0) continue;
    if (p.offset.value > end) clear(stream, own.gradients.flat(end, p.offset.value - end));
    end = (p.offset + p.size).value;
  }
  if (bucket.size.value > end) clear(stream, own.gradients.flat(end, bucket.size.value - end));
}

void ParamSync::begin_reduction(Stream& stream, ParamGroup& group) {
  const Region region(stream, RegionName::reduce);
  end_lease(stream, group);
  group.gradients.to(GradientState::reducing);
  for (const ParamBucket& own : group.buckets) fill_unwritten(stream, own);
  if (group.pooled()) restart(group);
  if (group.place.size == 1) return;
  if (in_flight_ == receive_slots) finish_oldest_reduction(stream);
  const std::size_t slot = (oldest_ + in_flight_++) % receive_slots;
  // Submitted on the copies' stream: ordered behind backward's writes on `stream`, and behind the local sum that read
  // the receive slot before.
  Stream& copies = device_.copies();
  copies.wait(stream.record());
  const Collective how = rules_.order == ReduceOrder::rank ? Collective::all_to_all : Collective::reduce_scatter;
  flights_[slot] = {&group,
                    mesh_.of(group.processes).submit(copies, {how, group.reduction[slot], group.id.value, "gradients"}),
                    stream.launches()};
}

/// Waits for the oldest reduction and sums it. The local sum runs on the copies' stream, so that backward does not
/// wait.
void ParamSync::finish_oldest_reduction(Stream& stream) {
  Stream& copies = device_.copies();
  const Region region(copies, RegionName::reduce);
  Flight& flight = flights_[oldest_];
  if (stream.launches() > flight.launches_before) ++overlapped_reductions_;
  flight.pending.wait(copies);
  add_up(copies, *flight.group, flight.group->reduction[oldest_]);
  flight.group->sent = summed_ = copies.record();
  oldest_ = (oldest_ + 1) % receive_slots;
  --in_flight_;
}

/// Sums a group's received slices in rank order, or takes the library's sums. Under full sharding adds them to the sums
/// of earlier micro-batches.
void ParamSync::add_up(Stream& stream, ParamGroup& group, std::span<const Exchange> received) {
  const bool more = group.pooled() && group.summed++ > 0;
  if (rules_.order == ReduceOrder::library && !group.pooled()) return;
  for (std::size_t i = 0; i < received.size(); ++i) {
    const ParamBucket& own = group.buckets[i];
    const Tensor mine = layout_.buckets()[own.id].slice(own.gradients, mesh_.ranks());
    const bool summed = rules_.order == ReduceOrder::library;
    const RankParts parts = summed ? RankParts{mine, mine.flat(0, 0).view({0, mine.elements()})}
                                   : RankParts{mine, received[i].receive, group.place.rank};
    (more ? add_in_order : sum_in_order)(stream, own.gradients_slice, parts);
  }
}

/// Brings every group to Reduced: begins the reductions that backward has not begun, waits for all.
void ParamSync::reduce(Stream& stream) {
  end_passes();
  for (ParamGroup& group : groups_) {
    const GradientState state = group.gradients.state();
    if (state != GradientState::accumulating && state != GradientState::empty) continue;
    if (group.pooled() && state == GradientState::empty) claim_gradients(stream, group);
    begin_reduction(stream, group);
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
