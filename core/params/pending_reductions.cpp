#include "core/params/pending_reductions.hpp"

#include <algorithm>
#include <utility>

#include "core/device/region.hpp"
#include "core/params/labels.hpp"
#include "kernels/digest/digest.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

PendingReductions::PendingReductions(Device& device, const ParamRegistry& registry, const ParamLayout& layout,
                                     Mesh& mesh, const SyncSchedule& schedule, const SyncRules& rules,
                                     OverlapCounts& counts)
    : device_(device),
      layout_(layout),
      mesh_(mesh),
      schedule_(schedule),
      rules_(rules),
      counts_(counts),
      sums_(device, layout, mesh),
      sent_(schedule.gradient_slots.size()) {
  for (const ParamSpec& spec : registry.specs()) draws_.add(fnv1a64("wire:" + spec.canonical.name));
}

void PendingReductions::start(Stream& stream, const Reduction& reduction, const ParamGroup& group) {
  if (group.rank.size == 1) return add_up_alone(stream, reduction, group);
  const std::size_t slot = (oldest_ + in_flight_) % receive_slots;
  const ReductionMemory& memory = group.reduction[slot];
  const auto oldest_meets = [&] { return flights_[oldest_].group->reduction[oldest_].interval.meets(memory.interval); };
  while (in_flight_ == receive_slots || (in_flight_ > 0 && oldest_meets())) finish_oldest(stream);
  ++in_flight_;
  // Submitted on the copies' stream: ordered behind backward's writes on `stream`, and behind the local sum that read
  // the receive slot before.
  Stream& copies = device_.copies();
  copies.wait(stream.record());
  encode(copies, reduction, group, memory);
  const Operation exchange{Collective::all_to_all, memory.exchanges, group.id.value, label::gradients};
  flights_[slot] = {&reduction, &group, mesh_.of(group.processes, Level::inside).submit(copies, exchange),
                    stream.launches()};
  if (rules_.reduce == Overlap::off) finish_oldest(stream);
}

void PendingReductions::finish_oldest(Stream& stream) {
  Stream& copies = device_.copies();
  const Region region(copies, RegionName::reduce);
  PendingReduction& oldest = flights_[oldest_];
  if (stream.launches() > oldest.launches_before) ++counts_.now.reductions;
  oldest.pending.wait(copies);
  add_up(copies, *oldest.reduction, *oldest.group, oldest.group->reduction[oldest_]);
  mark_summed(copies, *oldest.reduction);
  oldest_ = (oldest_ + 1) % receive_slots;
  --in_flight_;
}

/// Rounds a group's gradients to their wires, gaps and padding, which are zero, included.
void PendingReductions::encode(Stream& copies, const Reduction& reduction, const ParamGroup& group,
                               const ReductionMemory& memory) {
  for (std::size_t i = 0; i < group.buckets.size(); ++i) {
    const ParamBucket& own = group.buckets[i];
    const Bucket& bucket = layout_.buckets()[own.id];
    if (bucket.key.wire == GradientWire::fp32) continue;
    if (bucket.key.wire == GradientWire::bf16 && rules_.rounding == WireRounding::stochastic)
      encode_at_random(copies, reduction, bucket, own.gradients, memory.sent[i]);
    else
      encode_gradients(copies, bucket.key.wire, own.gradients, memory.sent[i]);
  }
}

/// Draws are keyed by what a micro-batch's gradient is, in no way by where it is computed.
void PendingReductions::encode_at_random(Stream& copies, const Reduction& reduction, const Bucket& bucket,
                                         const Tensor& gradients, const WireArray& sent) {
  const RankIn rank = mesh_.ranks().of(bucket.key.processes);
  const std::int64_t micro_batch = std::int64_t{reduction.round} * rank.size + rank.rank;  // mutation: draws_by_rank
  std::int64_t end = 0;
  const auto gap = [&](std::int64_t to) {
    if (to > end)
      encode_gradients(copies, bucket.key.wire, gradients.flat(end, to - end), {sent.values.flat(end, to - end)});
  };
  for (const Placement& p : bucket.members) {
    gap(p.offset.value);
    const WireDraws draws{key_, draws_[p.param], micro_batch, p.canonical.value};
    tessera::encode_at_random(copies, gradients.flat(p.offset.value, p.size.value),
                              sent.values.flat(p.offset.value, p.size.value), draws);
    end = (p.offset + p.size).value;
  }
  gap(bucket.size.value);
}

/// Adds a round's gradients to the running sum of one rank. Gradients in a slot of their own are the sum already,
/// unless they are rounded.
void PendingReductions::add_up_alone(Stream& stream, const Reduction& reduction, const ParamGroup& group) {
  const auto summed = [&](const ParamBucket& own) {
    return own.gradient_shard.data == own.gradients.data &&
           layout_.buckets()[own.id].key.wire == GradientWire::fp32;  // mutation: own_gradients_are_not_rounded
  };
  if (mesh_.ranks().sharding.size == 1 && std::ranges::all_of(group.buckets, summed)) return;
  Stream& copies = device_.copies();
  copies.wait(stream.record());
  encode(copies, reduction, group, group.reduction.front());
  add_up(copies, reduction, group, group.reduction.front());
  mark_summed(copies, reduction);
}

/// Sums a group's shards in rank order, and assigns them or adds them to the running sum.
void PendingReductions::add_up(Stream& copies, const Reduction& reduction, const ParamGroup& group,
                               const ReductionMemory& memory) {
  if (mesh_.ranks().sharding.size > 1) {
    sums_.add(reduction, group, memory.terms);
    if (rules_.reduce == Overlap::off) sums_.finish();
    return;
  }
  for (std::size_t i = 0; i < group.buckets.size(); ++i) {
    SumTerms parts = memory.terms[i];
    parts.idle = reduction.idle;  // mutation: padding_is_added
    (reduction.sum == SumInto::add ? add_in_order : sum_in_order)(copies, group.buckets[i].gradient_shard, parts);
  }
}

void PendingReductions::mark_summed(Stream& copies, const Reduction& reduction) {
  summed_ = copies.record();
  sent_[static_cast<std::size_t>(reduction.slot)] = {&reduction, summed_};
}

void PendingReductions::free(Stream& stream, const Reduction& next) {
  const auto meets = [&](const Reduction* other) { return other && meet(schedule_, layout_, *other, next); };
  const auto flies = [&] {
    for (std::size_t i = 0; i < in_flight_; ++i)
      if (meets(flight(i).reduction)) return true;
    return false;
  };
  while (flies()) finish_oldest(stream);
  for (Summed& sent : sent_)
    if (meets(sent.reduction)) stream.wait(std::exchange(sent, {}).event);
}

void PendingReductions::finish(Stream& stream) {
  while (in_flight_ > 0) finish_oldest(stream);
  if (mesh_.ranks().sharding.size > 1) {
    sums_.finish();
    summed_ = device_.copies().record();
  }
  const Region region(stream, RegionName::waiting);
  stream.wait(summed_);
  restart();
}

void PendingReductions::drop(Stream& stream) {
  for (std::size_t i = 0; i < in_flight_; ++i) flight(i).pending = Pending();
  sums_.drop();
  stream.wait(summed_);
  restart();
}

/// Nothing is in flight, and a step uses the receive slots in the same order as the one before: a capture requires it.
void PendingReductions::restart() {
  summed_ = {};
  for (Summed& sent : sent_) sent = {};
  oldest_ = in_flight_ = 0;  // mutation: redo_adds_up_the_first_try
}

}  // namespace tessera
