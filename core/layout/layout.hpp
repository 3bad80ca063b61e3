#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/config/choices.hpp"
#include "core/layout/dealing.hpp"
#include "core/layout/param.hpp"
#include "core/layout/ranks.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/indexed_by.hpp"

namespace tessera {

/// How the optimizer's work on a bucket is divided: each rank steps a slice of its elements, or whole matrices. Counted
/// are slices of elements whose gradients are counts: see is_counted().
enum class OwnerKind : std::uint8_t { element_sharded, whole_matrix, counted };
constexpr const char* name_of(OwnerKind k) {
  constexpr const char* names[] = {"element-sharded", "whole-matrix", "counted"};
  return names[static_cast<int>(k)];
}

/// Unit of an all-gather: with sharding `optimizer` a bucket of about bucket_elements; with full sharding, where ranks
/// keep slices of weights, a module or a block. Under full sharding buckets close at modules, whatever their size.
enum class GatherUnit : std::uint8_t { bucket, module, block };

/// What the layout depends on besides the parameters and their formats.
struct LayoutRules {
  int dense_ranks = 1;
  int expert_ranks = 1;
  std::int64_t bucket_elements = 1;  ///< a bucket closes with the dataset that brings it to this size
  OwnerKind matrices = OwnerKind::element_sharded;  ///< for matrices and experts; all else is element-sharded
  GatherCuts cuts = GatherCuts::flat;  ///< for element-sharded buckets whose format has codes; all others: flat
  GatherUnit unit = GatherUnit::bucket;
  int sharding_groups = 1;
  GradientWire wire = GradientWire::fp32;
  std::vector<KeptGradients> keep = {};  ///< gradients that travel in fp32 nevertheless
};

/// How an array is cut between ranks: counts and displacements of a collective, in entries of the array.
struct RangesByRank {
  std::vector<std::int64_t> counts, begins;  ///< of each rank's part
  bool operator==(const RangesByRank&) const = default;
};

/// A bucket holds parameters of one key only.
struct BucketKey {
  WeightFormat format;
  ProcessGroup processes = ProcessGroup::dense;
  OwnerKind owner = OwnerKind::element_sharded;
  int module = -1;  ///< number of the module, if buckets close at modules; else -1
  GradientWire wire = GradientWire::fp32;  ///< of its gradients
  bool operator==(const BucketKey&) const = default;
};

/// Numbers of a bucket and of a group of buckets in one layout.
struct BucketId {
  int value = -1;
  bool operator==(const BucketId&) const = default;
};
struct GroupId {
  int value = -1;
  bool operator==(const GroupId&) const = default;
};

/// One member of a parameter in its bucket. Offsets are multiples of 64 elements and of the wire's blocks, so that
/// these are the same for every layout.
struct Placement {
  ParamId param;
  int member = 0;
  BucketId bucket;
  ElementIndex offset, size;
  ElementIndex canonical;  ///< index of its first element in the canonical dataset
  ElementIndex real;       ///< elements without the vocabulary's padding, which is at the end
};

struct Bucket {
  BucketKey key;
  std::vector<Placement> members;    ///< ascending offsets
  ElementIndex size;                 ///< with padding
  std::vector<std::int64_t> counts;  ///< elements of each rank's slice
  std::vector<std::int64_t> begins;  ///< position of each rank's slice in the bucket
  RangesByRank shards{};             ///< of each rank of a sharding group: the slices of its number in all groups
  RangesByRank block_shards{};  ///< the same in blocks of the gradients' wire, if it has any
  std::vector<RangesByRank> pieces{};  ///< of each shard: the slices in it, by sharding group
  GatherCuts cuts = GatherCuts::flat;  ///< tile: no slice begins inside a row of the format's blocks
  int ranks() const { return static_cast<int>(counts.size()); }
  /// The placement of each parameter's first member, ascending.
  std::vector<std::reference_wrapper<const Placement>> parameters() const {
    std::vector<std::reference_wrapper<const Placement>> first;
    for (const Placement& p : members)
      if (p.member == 0) first.emplace_back(p);
    return first;
  }
  /// Index of one of `members`.
  std::size_t index_of(const Placement& member) const { return static_cast<std::size_t>(&member - members.data()); }
  /// Whether each block of the format has one owner.
  bool owns_blocks() const { return key.owner == OwnerKind::whole_matrix || cuts == GatherCuts::tile; }
  /// Elements of a rank's slice, and its begin.
  std::int64_t slice(const Ranks& r) const { return counts[static_cast<std::size_t>(r.of(key.processes).rank)]; }
  std::int64_t slice_begin(const Ranks& r) const { return begins[static_cast<std::size_t>(r.of(key.processes).rank)]; }
  /// A rank's slice of an array [size].
  Tensor slice(const Tensor& whole, const Ranks& r) const { return whole.flat(slice_begin(r), slice(r)); }
  /// Number of a rank's shard; elements of the shard, and its begin.
  std::size_t shard_number(const Ranks& r) const {
    return static_cast<std::size_t>(r.of(key.processes, Level::inside).rank);
  }
  std::int64_t shard(const Ranks& r) const { return shards.counts[shard_number(r)]; }
  std::int64_t shard_begin(const Ranks& r) const { return shards.begins[shard_number(r)]; }
  /// A rank's shard of an array [size].
  Tensor shard(const Tensor& whole, const Ranks& r) const { return whole.flat(shard_begin(r), shard(r)); }
};

/// The buckets of one coalesced collective, all of one process group. With sharding `optimizer`: a single bucket, or
/// the last buckets of all keys together. These hold the model's first layers and are the first to be gathered and the
/// last to be reduced. With full sharding: all buckets of a module or block.
struct BucketGroup {
  ProcessGroup processes = ProcessGroup::dense;
  std::vector<BucketId> buckets;  ///< ascending
  int unit = -1;  ///< number of the module or block, the same in all process groups; -1: sharding `optimizer`
};

/// A piece of a member inside one rank's slice of a bucket.
struct ShardRange {
  ParamId param;
  int member = 0;
  ElementIndex begin;  ///< within the member
  ElementIndex count;
  ElementIndex shard;      ///< within the rank's slice
  ElementIndex canonical;  ///< index of its first element in the canonical dataset
  ElementIndex real;       ///< elements without the vocabulary's padding, which is at the end
};

/// Position and owner of every element of every parameter: a pure value, the same on all ranks (hash()). Parameters lie
/// in reverse registration order, dataset by dataset, experts ascending. So offsets do not depend on whether expert
/// weights are held single or discrete. Slices of an element-sharded bucket with flat cuts have equal sizes; with tile
/// cuts they follow rows of blocks. Of a whole-matrix bucket a rank owns a run of members, with the gaps behind them,
/// or nothing. Slices of ranks of equal number in their sharding groups are neighbours: together they are one shard,
/// which each of these ranks keeps.
class ParamLayout {
 public:
  static constexpr std::int64_t alignment = 64;
  /// Cuts between ranks are multiples of this many elements, so that no byte of packed codes is split. They are also
  /// multiples of the wire's blocks.
  static constexpr std::int64_t cut_elements = 32;

  static ParamLayout build(const ParamRegistry& registry, const LayoutRules& rules);

  const IndexedBy<BucketId, Bucket>& buckets() const { return buckets_; }
  const IndexedBy<GroupId, BucketGroup>& groups() const { return groups_; }
  GroupId group_of(ParamId param) const { return group_of_[placement(param).bucket]; }
  /// Placement of the first member; further members follow at distance member_stride() elements.
  const Placement& placement(ParamId param) const { return params_[param].first; }
  std::int64_t member_stride(ParamId param) const { return params_[param].stride; }

  /// The pieces of a bucket that a rank owns, ascending. Gaps between members and padding belong to no piece.
  std::vector<ShardRange> shard_ranges(BucketId bucket, const Ranks& ranks) const;

  /// Load of each rank of a process group by the whole-matrix buckets.
  const std::vector<OwnerLoad>& owners(ProcessGroup processes) const {
    return owners_[static_cast<std::size_t>(processes)];
  }

  /// Hash of all that must be equal on all ranks. Experts are numbered from the first one registered on this rank, so
  /// that ranks that hold different experts have the same hash.
  std::uint64_t hash() const { return hash_; }

 private:
  struct Param {
    Placement first;  ///< of its first member
    std::int64_t stride = 0;
  };
  void put(const ParamRegistry& registry, ParamId param, BucketId bucket);
  void deal(const ParamRegistry& registry, ProcessGroup processes, int ranks, int sharding_groups);

  IndexedBy<BucketId, Bucket> buckets_;
  IndexedBy<GroupId, BucketGroup> groups_;
  IndexedBy<BucketId, GroupId> group_of_;
  IndexedBy<ParamId, Param> params_;
  std::array<std::vector<OwnerLoad>, 2> owners_;  ///< by process group
  std::uint64_t hash_ = 0;
};

}  // namespace tessera
