#include "core/layout/layout.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <ranges>
#include <span>

#include "core/layout/cuts.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

bool belongs_to(KeptGradients kept, const ParamSpec& spec) {
  switch (kept) {
    case KeptGradients::norms: return spec.role == Role::norm;
    case KeptGradients::biases: return spec.role == Role::bias;
    case KeptGradients::router: return spec.role == Role::router;
    case KeptGradients::embedding: return spec.role == Role::embedding || spec.role == Role::position;
  }
  return false;
}

/// The wire of a parameter's gradients. Counts are exact: they are never rounded.
GradientWire wire_of(const ParamSpec& spec, const LayoutRules& rules) {
  const bool kept = is_counted(spec.role) ||
                    std::ranges::any_of(rules.keep, [&](KeptGradients kind) { return belongs_to(kind, spec); });
  return kept ? GradientWire::fp32 : rules.wire;
}

BucketKey key_of(const ParamSpec& spec, const LayoutRules& rules) {
  const auto processes = spec.role == Role::expert ? ProcessGroup::expert : ProcessGroup::dense;
  const OwnerKind owner = is_counted(spec.role)  ? OwnerKind::counted
                          : is_matrix(spec.role) ? rules.matrices
                                                 : OwnerKind::element_sharded;
  return {spec.format, processes, owner, rules.unit == GatherUnit::bucket ? -1 : spec.module, wire_of(spec, rules)};
}

int ranks_of(ProcessGroup processes, const LayoutRules& rules) {
  // mutation: one_size_for_all_process_groups
  return processes == ProcessGroup::dense ? rules.dense_ranks : rules.expert_ranks;
}

/// Whether a bucket takes no further dataset. A bucket of whole matrices takes about one matrix for each rank.
/// Otherwise few ranks would own and send all of it, and their network links would be the step's slowest.
bool full(const Bucket& bucket, const LayoutRules& rules) {
  if (rules.unit != GatherUnit::bucket || bucket.size.value < rules.bucket_elements) return false;
  if (bucket.key.owner != OwnerKind::whole_matrix) return true;
  const auto largest = std::ranges::max_element(bucket.members, {}, &Placement::size);
  return 10 * bucket.size.value >= 9 * ranks_of(bucket.key.processes, rules) * largest->size.value;
}

/// Fixes a bucket's size and slices. Whole-matrix buckets get their slices later, when all buckets exist:
/// ParamLayout::deal().
void close(Bucket& bucket, const ParamRegistry& registry, const LayoutRules& rules) {
  if (bucket.key.owner == OwnerKind::whole_matrix) {
    bucket.size = ElementIndex(round_up(bucket.size.value, std::int64_t{128}));
    return;
  }
  const int ranks = ranks_of(bucket.key.processes, rules);
  // mutation: a_block_across_a_cut.2
  const std::int64_t cut = std::max(ParamLayout::cut_elements, cut_of(bucket.key.wire));
  const std::int64_t multiple = std::lcm(ranks * cut, std::int64_t{128});
  bucket.size = ElementIndex(round_up(bucket.size.value, multiple));
  const std::optional<FormatId>& codes = bucket.key.format.codes;
  bucket.cuts = codes ? rules.cuts : GatherCuts::flat;
  const std::vector<std::int64_t> cuts =
      bucket.cuts == GatherCuts::flat
          ? flat_cuts(bucket.size.value, ranks)
          : tile_cuts(tile_positions(registry, bucket), ranks);
  const int numbers = ranks / rules.sharding_groups;
  for (int r = 0; r < ranks; ++r) {
    // Slices lie by number in the sharding group, then by group.
    const auto at = static_cast<std::size_t>(r % numbers * rules.sharding_groups + r / numbers);
    bucket.counts.push_back(cuts[at + 1] - cuts[at]);
    bucket.begins.push_back(cuts[at]);
  }
}

/// Sets the slices of a whole-matrix bucket. A gap belongs to the slice before it; an empty slice begins at the end.
void cut(Bucket& bucket, const std::vector<OwnedRange>& runs, int ranks) {
  bucket.counts.assign(static_cast<std::size_t>(ranks), 0);
  bucket.begins.assign(static_cast<std::size_t>(ranks), bucket.size.value);
  auto member = bucket.members.begin();
  for (const OwnedRange& run : runs) {
    const auto rank = static_cast<std::size_t>(run.rank);
    bucket.begins[rank] = member->offset.value;
    member += run.members;
    const std::int64_t end = member == bucket.members.end() ? bucket.size.value : member->offset.value;
    bucket.counts[rank] = end - bucket.begins[rank];
  }
}

/// Joins the slices of equal number in their sharding groups to shards. An empty shard begins at the end of the bucket.
void join_slices(Bucket& bucket, int sharding_groups) {
  const std::size_t numbers = bucket.counts.size() / static_cast<std::size_t>(sharding_groups);
  for (std::size_t number = 0; number < numbers; ++number) {
    std::int64_t begin = bucket.size.value, end = 0, sum = 0;
    for (std::size_t r = number; r < bucket.counts.size(); r += numbers) {
      if (bucket.counts[r] == 0) continue;
      begin = std::min(begin, bucket.begins[r]);
      end = std::max(end, bucket.begins[r] + bucket.counts[r]);
      sum += bucket.counts[r];
    }
    require(sum == 0 || sum == end - begin, "ParamLayout", "the slices of a shard are neighbours");
    bucket.shards.counts.push_back(sum);
    bucket.shards.begins.push_back(begin);
    RangesByRank& pieces = bucket.pieces.emplace_back();
    for (std::size_t r = number; r < bucket.counts.size(); r += numbers) {
      pieces.counts.push_back(bucket.counts[r]);
      pieces.begins.push_back(bucket.counts[r] > 0 ? bucket.begins[r] : begin);
    }
  }
}

/// Cuts the scales of a bucket's gradients: as the shards, in blocks.
void cut_blocks(Bucket& bucket) {
  const std::int64_t block = traits_of(bucket.key.wire).block;
  if (block == 0) return;
  bucket.block_shards = bucket.shards;
  for (std::vector<std::int64_t>* const all : {&bucket.block_shards.counts, &bucket.block_shards.begins})
    for (std::int64_t& elements : *all) elements /= block;
}

/// Canonical index at which this rank's part of each parameter's dataset begins.
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
    if (bucket.key.wire != GradientWire::fp32) mix(static_cast<std::uint64_t>(bucket.key.wire));
    mix(static_cast<std::uint64_t>(bucket.size.value));
    for (std::int64_t begin : bucket.begins) mix(static_cast<std::uint64_t>(begin));
    for (const Placement& p : bucket.members) {
      // Canonical names and indices, so that single and discrete expert weights have the same hash.
      mix(fnv1a64(registry[p.param].canonical.name));
      mix(static_cast<std::uint64_t>(p.canonical.value - begins[p.param]));
      mix(static_cast<std::uint64_t>(p.offset.value));
    }
  }
  return hash;
}

/// Groups of full sharding: one for each block (or module) of a process group; parameters outside of blocks are grouped
/// by module.
IndexedBy<GroupId, BucketGroup> groups_by_unit(const ParamRegistry& registry,
                                               const IndexedBy<BucketId, Bucket>& buckets, GatherUnit unit) {
  IndexedBy<GroupId, BucketGroup> groups;
  for (BucketId b : buckets.ids()) {
    const ParamSpec& spec = registry[buckets[b].members.front().param];
    const bool block = unit == GatherUnit::block && spec.block >= 0;
    const int number = block ? -2 - spec.block : spec.module;
    const ProcessGroup processes = buckets[b].key.processes;
    const auto same = [&](const BucketGroup& group) { return group.processes == processes && group.unit == number; };
    const auto found = std::ranges::find_if(groups, same);
    if (found == groups.end())
      groups.add({processes, {b}, number});
    else
      found->buckets.push_back(b);
  }
  return groups;
}

IndexedBy<GroupId, BucketGroup> groups_of(const IndexedBy<BucketId, Bucket>& buckets) {
  IndexedBy<GroupId, BucketGroup> groups;
  std::array<GroupId, 2> first_layers;  // by process group
  for (BucketId b : buckets.ids()) {
    const BucketKey& key = buckets[b].key;
    const bool last = std::none_of(buckets.begin() + b.value + 1, buckets.end(),
                                   [&](const Bucket& later) { return later.key == key; });
    GroupId own, &group = last ? first_layers[static_cast<std::size_t>(key.processes)] : own;
    if (group == GroupId{}) group = groups.add({key.processes, {}, -1});
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
    const BucketKey key = key_of(registry[dataset.params.front()], rules);
    auto found = std::find_if(open.begin(), open.end(), [&](BucketId b) { return layout.buckets_[b].key == key; });
    if (found == open.end()) {
      open.push_back(layout.buckets_.add({key, {}, {}, {}, {}}));
      found = open.end() - 1;
    }
    for (ParamId param : dataset.params) layout.put(registry, param, *found);
    Bucket& bucket = layout.buckets_[*found];
    if (full(bucket, rules)) {
      close(bucket, registry, rules);
      open.erase(found);
    }
  }
  for (BucketId b : open) close(layout.buckets_[b], registry, rules);
  for (ProcessGroup processes : process_groups)
    layout.deal(registry, processes, ranks_of(processes, rules), rules.sharding_groups);
  for (Bucket& bucket : layout.buckets_) {
    join_slices(bucket, rules.sharding_groups);
    cut_blocks(bucket);
  }

  layout.groups_ = rules.unit == GatherUnit::bucket ? groups_of(layout.buckets_)
                                                    : groups_by_unit(registry, layout.buckets_, rules.unit);
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
  const std::int64_t aligned = std::max(alignment, cut_of(bucket.key.wire));
  for (int m = 0; m < spec.members; ++m) {
    const ElementIndex offset(round_up(bucket.size.value, aligned));
    bucket.members.push_back({param, m, id, offset, ElementIndex(spec.member_elements()),
                              ElementIndex(spec.canonical_index(m)), ElementIndex(spec.real_elements())});
    bucket.size = offset + ElementIndex(spec.member_elements());
    // mutation: gaps_forgotten
    if (m == 0) params_[param] = {bucket.members.back(), round_up(spec.member_elements(), aligned)};
  }
}

void ParamLayout::deal(const ParamRegistry& registry, ProcessGroup processes, int ranks, int sharding_groups) {
  std::vector<Bucket*> dealt;
  std::vector<std::vector<OwnerLoad>> members;  // of each bucket
  for (Bucket& bucket : buckets_) {
    if (bucket.key.processes != processes || bucket.key.owner != OwnerKind::whole_matrix) continue;
    dealt.push_back(&bucket);
    std::vector<OwnerLoad>& own = members.emplace_back();
    for (const Placement& p : bucket.members) own.push_back({newton_schulz_cost(registry[p.param]), p.size.value});
  }
  GroupedDealing dealing(ranks, sharding_groups, members);
  for (std::size_t i = 0; i < dealt.size(); ++i) cut(*dealt[i], dealing.runs()[i], ranks);
  owners_[static_cast<std::size_t>(processes)] = dealing.loads();
}

std::vector<ShardRange> ParamLayout::shard_ranges(BucketId b, const Ranks& ranks) const {
  const Bucket& bucket = buckets_[b];
  const std::int64_t begin = bucket.slice_begin(ranks), end = begin + bucket.slice(ranks);
  std::vector<ShardRange> pieces;
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
