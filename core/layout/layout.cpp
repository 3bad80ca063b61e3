#include "core/layout/layout.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <ranges>

#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

BucketKey key_of(const ParamSpec& spec) {
  const auto processes = spec.role == Role::expert ? ProcessGroup::expert : ProcessGroup::dense;
  return {spec.format, processes, OwnerKind::element_sharded};
}

void close(Bucket& bucket, const LayoutRules& rules) {
  const int ranks = bucket.key.processes == ProcessGroup::dense ? rules.dense_ranks : rules.expert_ranks;
  const std::int64_t multiple = std::lcm(ranks * ParamLayout::cut_elements, std::int64_t{128});
  bucket.size = ElementIndex(round_up(bucket.size.value, multiple));
  const std::int64_t slice = bucket.size.value / ranks;
  for (int r = 0; r < ranks; ++r) {
    bucket.counts.push_back(slice);
    bucket.begins.push_back(r * slice);
  }
}

/// Where this rank's part of each parameter's dataset begins.
IndexedBy<ParamId, std::int64_t> dataset_begins(const ParamRegistry& registry) {
  IndexedBy<ParamId, std::int64_t> begins(registry.size());
  for (const Dataset& dataset : registry.datasets())
    for (ParamId param : dataset.params) begins[param] = registry.canonical(dataset).first;
  return begins;
}

std::uint64_t hash_of(const ParamRegistry& registry, const IndexedBy<BucketId, Bucket>& buckets) {
  std::uint64_t hash = 0;
  const IndexedBy<ParamId, std::int64_t> begins = dataset_begins(registry);
  const auto mix = [&hash](std::uint64_t value) { hash = mix64(hash ^ value) + value; };
  for (const Bucket& bucket : buckets) {
    mix(static_cast<std::uint64_t>(bucket.key.format.plain));
    if (bucket.key.format.codes) mix(fnv1a64(name_of(bucket.key.format)));
    mix(static_cast<std::uint64_t>(bucket.key.processes));
    mix(static_cast<std::uint64_t>(bucket.key.owner));
    mix(static_cast<std::uint64_t>(bucket.size.value));
    for (std::int64_t begin : bucket.begins) mix(static_cast<std::uint64_t>(begin));
    for (const Placement& p : bucket.members) {
      // Canonical names and indices, so that single and discrete expert weights have one hash.
      mix(fnv1a64(registry[p.param].canonical.name));
      mix(static_cast<std::uint64_t>(p.canonical.value - begins[p.param]));
      mix(static_cast<std::uint64_t>(p.offset.value));
    }
  }
  return hash;
}

IndexedBy<GroupId, BucketGroup> groups_of(const IndexedBy<BucketId, Bucket>& buckets) {
  IndexedBy<GroupId, BucketGroup> groups;
  std::array<GroupId, 2> first_layers;  // by process group
  for (BucketId b : buckets.ids()) {
    const BucketKey& key = buckets[b].key;
    const bool last = std::none_of(buckets.begin() + b.value + 1, buckets.end(),
                                   [&](const Bucket& later) { return later.key == key; });
    GroupId own, &group = last ? first_layers[static_cast<std::size_t>(key.processes)] : own;
    if (group == GroupId{}) group = groups.add({key.processes, {}});
    groups[group].buckets.push_back(b);
  }
  return groups;
}

}  // namespace

ParamLayout ParamLayout::build(const ParamRegistry& registry, const LayoutRules& rules) {
  ParamLayout layout;
  layout.params_ = IndexedBy<ParamId, Param>(registry.size());
  std::vector<BucketId> open;  // buckets that still take parameters, one a key
  for (const Dataset& dataset : std::views::reverse(registry.datasets())) {
    const BucketKey key = key_of(registry[dataset.params.front()]);
    auto found = std::find_if(open.begin(), open.end(), [&](BucketId b) { return layout.buckets_[b].key == key; });
    if (found == open.end()) {
      open.push_back(layout.buckets_.add({key, {}, {}, {}, {}}));
      found = open.end() - 1;
    }
    for (ParamId param : dataset.params) layout.put(registry, param, *found);
    Bucket& bucket = layout.buckets_[*found];
    if (bucket.size.value >= rules.bucket_elements) {
      close(bucket, rules);
      open.erase(found);
    }
  }
  for (BucketId b : open) close(layout.buckets_[b], rules);

  layout.groups_ = groups_of(layout.buckets_);
  layout.group_of_ = IndexedBy<BucketId, GroupId>(layout.buckets_.size());
  for (GroupId group : layout.groups_.ids())
    for (BucketId b : layout.groups_[group].buckets) layout.group_of_[b] = group;
  layout.hash_ = hash_of(registry, layout.buckets_);
  return layout;
}

/// Appends all members of a parameter.
void ParamLayout::put(const ParamRegistry& registry, ParamId param, BucketId id) {
  const ParamSpec& spec = registry[param];
  Bucket& bucket = buckets_[id];
  for (int m = 0; m < spec.members; ++m) {
    const ElementIndex offset(round_up(bucket.size.value, alignment));
    bucket.members.push_back({param, m, id, offset, ElementIndex(spec.member_elements()),
                              ElementIndex(spec.canonical_index(m)), ElementIndex(spec.real_elements())});
    bucket.size = offset + ElementIndex(spec.member_elements());
    if (m == 0) params_[param] = {bucket.members.back(), round_up(spec.member_elements(), alignment)};
  }
}

std::vector<Piece> ParamLayout::pieces(BucketId b, const Ranks& ranks) const {
  const Bucket& bucket = buckets_[b];
  const std::int64_t begin = bucket.slice_begin(ranks), end = begin + bucket.slice(ranks);
  std::vector<Piece> pieces;
  for (const Placement& p : bucket.members) {
    const std::int64_t from = std::max(begin, p.offset.value), to = std::min(end, (p.offset + p.size).value);
    if (from >= to) continue;
    const ElementIndex within = ElementIndex(from) - p.offset, count = ElementIndex(to - from);
    const std::int64_t real = std::clamp<std::int64_t>((p.real - within).value, 0, count.value);
    pieces.push_back(
        {p.param, p.member, within, count, ElementIndex(from - begin), p.canonical + within, ElementIndex(real)});
  }
  return pieces;
}

}  // namespace tessera
