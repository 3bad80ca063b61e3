#include "core/params/running_sums.hpp"

#include <algorithm>

#include "core/params/labels.hpp"
#include "core/params/wires/shard_ranges.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

RunningSums::RunningSums(Device& device, const ParamLayout& layout, Mesh& mesh)
    : device_(device), mesh_(mesh), here_(mesh.ranks().sharding) {
  const auto groups = static_cast<std::size_t>(here_.size), here = static_cast<std::size_t>(here_.rank);
  if (groups == 1) return;
  under_way_.resize(std::min(groups, static_cast<std::size_t>(most_running_sums)));
  for (const Bucket& bucket : layout.buckets()) {
    const RangesByRank& pieces = bucket.pieces[bucket.shard_number(mesh.ranks())];
    Cuts cuts{counted_from(bucket.shard_begin(mesh.ranks()), pieces), std::vector<std::int64_t>(groups, 0),
              std::vector<std::int64_t>(groups, 0)};
    if (here + 1 == groups) cuts.sent = pieces.counts;
    cuts.arrivals.back() = pieces.counts[here];
    cuts_.add(std::move(cuts));
  }
}

bool RunningSums::holds(const ParamGroup& group) const {
  for (std::size_t i = 0; i < count_; ++i)
    if (under_way_[(oldest_ + i) % under_way_.size()].group == &group) return true;
  return false;
}

void RunningSums::add(const Reduction& reduction, const ParamGroup& group, std::span<const SumTerms> terms) {
  while (count_ == under_way_.size() || holds(group)) deliver_oldest();
  const std::size_t slot = (oldest_ + count_++) % under_way_.size();
  const std::span<const Tensor> sums = group.sums[slot];
  Stream& copies = device_.copies();
  if (reduction.sum == SumInto::add) collect(group, sums);
  pass_on(group, {}, here_.rank > 0 ? sums : std::span<const Tensor>()).wait(copies);
  add_up(reduction, group, terms, sums);
  const bool last = here_.rank + 1 == here_.size;
  under_way_[slot] = {&group, pass_on(group, last ? std::span<const Tensor>() : sums, {})};
}

/// Brings the sums of the rounds before from their owners to all sharding groups, the first of which begins with them.
void RunningSums::collect(const ParamGroup& group, std::span<const Tensor> sums) {
  exchanges_.clear();
  for (std::size_t i = 0; i < group.buckets.size(); ++i) {
    const ParamBucket& own = group.buckets[i];
    const RangesByRank& pieces = cuts_[own.id].pieces;
    exchanges_.push_back({own.gradient_shard, sums[i], pieces.counts, pieces.begins});
  }
  Stream& copies = device_.copies();
  mesh_.of(group.processes, Level::across)
      .submit(copies, {Collective::all_gather, exchanges_, group.id.value, label::running_sums})
      .wait(copies);
}

Pending RunningSums::pass_on(const ParamGroup& group, std::span<const Tensor> sent, std::span<const Tensor> received) {
  exchanges_.clear();
  for (std::size_t i = 0; i < group.buckets.size(); ++i)
    exchanges_.push_back({sent.empty() ? Tensor{} : sent[i], received.empty() ? Tensor{} : received[i], {}, {}});
  return mesh_.of(group.processes, Level::across)
      .submit(device_.copies(), {Collective::pass_on, exchanges_, group.id.value, label::running_sums});
}

/// Adds the gradients of this sharding group onto `sums`. The first group's first round begins them.
void RunningSums::add_up(const Reduction& reduction, const ParamGroup& group, std::span<const SumTerms> terms,
                         std::span<const Tensor> sums) {
  const int ranks = group.rank.size;
  const int idle = std::clamp(reduction.idle - (here_.size - 1 - here_.rank) * ranks, 0, ranks);
  if (idle == ranks) return;  // what came is passed on as it is
  const bool begins = here_.rank == 0 && reduction.sum == SumInto::assign;  // mutation: each_group_begins_a_sum
  for (std::size_t i = 0; i < group.buckets.size(); ++i) {
    SumTerms parts = terms[i];
    parts.idle = idle;
    (begins ? sum_in_order : add_in_order)(device_.copies(), sums[i], parts);
  }
}

/// Sends the slices of a sum from the last sharding group to their owners.
void RunningSums::deliver_oldest() {
  UnderWay& oldest = under_way_[oldest_];
  Stream& copies = device_.copies();
  oldest.sent.wait(copies);
  exchanges_.clear();
  const std::span<const Tensor> sums = oldest.group->sums[oldest_];
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const ParamBucket& own = oldest.group->buckets[i];
    const Cuts& cuts = cuts_[own.id];
    exchanges_.push_back({sums[i], own.gradient_shard, cuts.sent, cuts.pieces.begins, cuts.arrivals});
  }
  mesh_.of(oldest.group->processes, Level::across)
      .submit(copies, {Collective::exchange_rows, exchanges_, oldest.group->id.value, label::running_sums})
      .wait(copies);
  oldest_ = (oldest_ + 1) % under_way_.size();
  --count_;
}

void RunningSums::finish() {
  while (count_ > 0) deliver_oldest();
  oldest_ = 0;
}

void RunningSums::drop() {
  for (std::size_t i = 0; i < count_; ++i) under_way_[(oldest_ + i) % under_way_.size()].sent = Pending();
  oldest_ = count_ = 0;
}

}  // namespace tessera
