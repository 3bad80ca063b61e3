#include "core/params/pending_reductions.hpp"

#include <utility>

#include "core/device/region.hpp"
#include "core/params/labels.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

void PendingReductions::start(Stream& stream, const Reduction& reduction, const ParamGroup& group) {
  if (group.rank.size == 1) return add_up_alone(stream, reduction, group);
  if (in_flight_ == receive_slots) finish_oldest(stream);
  const std::size_t slot = (oldest_ + in_flight_++) % receive_slots;
  // Submitted on the copies' stream: ordered behind backward's writes on `stream`, and behind the local sum that read
  // the receive slot before.
  Stream& copies = device_.copies();
  copies.wait(stream.record());
  const Operation exchange{Collective::all_to_all, group.reduction[slot], group.id.value, label::gradients};
  flights_[slot] = {&reduction, &group, mesh_.of(group.processes, Level::inside).submit(copies, exchange),
                    stream.launches()};
  if (overlap_ == Overlap::off) finish_oldest(stream);
}

void PendingReductions::finish_oldest(Stream& stream) {
  Stream& copies = device_.copies();
  const Region region(copies, RegionName::reduce);
  PendingReduction& oldest = flights_[oldest_];
  if (stream.launches() > oldest.launches_before) ++counts_.now.reductions;
  oldest.pending.wait(copies);
  add_up(copies, *oldest.reduction, *oldest.group, oldest.group->reduction[oldest_]);
  sent_[static_cast<std::size_t>(oldest.reduction->slot)] = summed_ = copies.record();
  oldest_ = (oldest_ + 1) % receive_slots;
  --in_flight_;
}

/// Adds a round's gradients to the running sum of one rank; gradients in a slot of their own are the sum already.
void PendingReductions::add_up_alone(Stream& stream, const Reduction& reduction, const ParamGroup& group) {
  const ParamBucket& first = group.buckets.front();
  if (mesh_.ranks().sharding.size == 1 && first.gradient_shard.data == first.gradients.data) return;
  Stream& copies = device_.copies();
  copies.wait(stream.record());
  add_up(copies, reduction, group, {});
  sent_[static_cast<std::size_t>(reduction.slot)] = summed_ = copies.record();
}

/// Sums a group's shards in rank order, and assigns them or adds them to the running sum. `received` is empty for one
/// rank.
void PendingReductions::add_up(Stream& copies, const Reduction& reduction, const ParamGroup& group,
                               std::span<const Exchange> received) {
  if (mesh_.ranks().sharding.size > 1) {
    sums_.add(reduction, group, received);
    if (overlap_ == Overlap::off) sums_.finish();
    return;
  }
  for (std::size_t i = 0; i < group.buckets.size(); ++i) {
    const ParamBucket& own = group.buckets[i];
    const Tensor mine = layout_.buckets()[own.id].slice(own.gradients, mesh_.ranks());
    const Tensor others = received.empty() ? mine.flat(0, 0).view({0, mine.elements()}) : received[i].receive;
    const SumTerms parts{mine, others, group.rank.rank, reduction.idle};  // mutation: padding_is_added
    (reduction.sum == SumInto::add ? add_in_order : sum_in_order)(copies, own.gradient_shard, parts);
  }
}

void PendingReductions::free(Stream& stream, int gradient_slot) {
  const auto flies = [&] {
    for (std::size_t i = 0; i < in_flight_; ++i)
      if (flight(i).reduction->slot == gradient_slot) return true;
    return false;
  };
  while (flies()) finish_oldest(stream);
  stream.wait(std::exchange(sent_[static_cast<std::size_t>(gradient_slot)], {}));
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
  for (Event& sent : sent_) sent = {};
  oldest_ = in_flight_ = 0;  // mutation: redo_adds_up_the_first_try
}

}  // namespace tessera
