#include "core/device/region.hpp"
#include "core/params/param_sync.hpp"
#include "kernels/convert/convert.hpp"

/// The gradients' half of ParamSync: gradient accumulation, then a reduce-scatter in rank order, a round at a time, as
/// the schedule's reductions say. No gradients are cleared: a round's first write has beta 0, and elements that were
/// never written are zeroed on the edge into Reducing.
namespace tessera {
namespace {

/// Zeroes a bucket's gaps and padding, and parameters that no micro-batch contributed to: they may hold old values.
void fill_unwritten(Stream& stream, const Bucket& bucket, const Tensor& gradients, const Rounds& rounds) {
  std::int64_t end = 0;
  for (const Placement& p : bucket.members) {
    if (!rounds.written(p.param)) continue;
    if (p.offset.value > end) clear(stream, gradients.flat(end, p.offset.value - end));
    end = (p.offset + p.size).value;
  }
  // mutation: staged_bytes_in_sums
  if (bucket.size.value > end) clear(stream, gradients.flat(end, bucket.size.value - end));
}

}  // namespace

int ParamSync::buckets() const { return buckets_.size(); }
const Tensor& ParamSync::shard(BucketId bucket) const { return buckets_[bucket]->gradient_shard; }
const Tensor& ParamSync::gradients(BucketId bucket) const { return buckets_[bucket]->gradients; }
GradientState ParamSync::gradient_state(GroupId group) const { return groups_[group].gradients.state(); }

/// Before a round's first write to its slot. Ends the gather of bf16 that is staged there, and orders `stream` behind
/// the collectives that last read this memory.
void ParamSync::claim_gradients(Stream& stream, const ParamGroup& group) {
  const Reduction& reduction = *rounds_.now(group.id);
  if (reduction.after != VisitId{} && in_transit(group)) open(stream, group.pool);  // mutation: lease_ignored
  pending_.free(stream, reduction);
}

Gradient ParamSync::slot(ParamId param) {
  ParamGroup& group = group_of(param);
  if (group.gradients.state() != GradientState::accumulating) {
    if (!rounds_.now(group.id))
      throw StateError(group.id, group.gradients.epoch(), name_of(group.gradients.state()),
                       name_of(GradientState::accumulating));
    claim_gradients(device_.compute(), group);
    group.gradients.to(GradientState::accumulating);
  }
  const Placement& place = layout_.placement(param);
  const ParamSpec& spec = registry_[param];
  const float beta = rounds_.written(param) ? 1.0f : 0.0f;  // mutation: added_to_last_steps_gradients
  return {gradients(place.bucket).flat(place.offset.value, spec.member_elements()).view(spec.member), beta,
          spec.members, layout_.member_stride(param)};
}

void ParamSync::written(Stream& stream, ParamId param) {
  ParamGroup& group = group_of(param);
  require(group.gradients.state() == GradientState::accumulating, "Gradients", "a contribution came without its slot");
  require(rounds_.expects(param), "Gradients", "a gradient got more contributions than the dry pass saw");
  // mutation: a_reduction_a_write_early
  if (rounds_.completes(param) && rounds_.now(group.id)->begin == BeginAt::last_write) start_reduction(stream, group);
}

/// Ends a round: starts its reduction. The group's next round may begin.
void ParamSync::start_reduction(Stream& stream, ParamGroup& group) {
  const Region region(stream, RegionName::reduce);
  const Reduction& reduction = *rounds_.now(group.id);
  group.gradients.to(GradientState::reducing);
  for (const ParamBucket& own : group.buckets)
    fill_unwritten(stream, layout_.buckets()[own.id], own.gradients, rounds_);
  rounds_.next(group.id);
  pending_.start(stream, reduction, group);
}

void ParamSync::reduce(Stream& stream) {
  end_pass();
  for (ParamGroup& group : groups_) {
    const GradientState state = group.gradients.state();
    if (state != GradientState::accumulating && state != GradientState::empty) continue;
    if (state == GradientState::empty) claim_gradients(stream, group);
    start_reduction(stream, group);
  }
  pending_.finish(stream);
  for (ParamGroup& group : groups_) group.gradients.to(GradientState::reduced);  // mutation: staged_before_the_step.3
}

void ParamSync::drop() {
  pending_.drop(device_.compute());
  for (ParamGroup& group : groups_) {
    if (group.gradients.state() == GradientState::reducing) group.gradients.to(GradientState::reduced);
    if (group.gradients.state() != GradientState::empty) group.gradients.to(GradientState::empty);
  }
  rounds_.restart();  // mutation: redo_keeps_counts
}

Tensor ParamSync::claim(BucketId bucket) { return buckets_[bucket]->wire->claim(bucket); }

}  // namespace tessera
