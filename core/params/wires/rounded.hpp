#pragma once
#include <span>
#include <vector>

#include "core/params/wires/bucket.hpp"
#include "core/params/wires/exchanges.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {

/// Shards of plain values: what a bucket holds, or the bf16 that every rank quantizes. Rounds this rank's slices of the
/// masters into the buffers of an all-gather, but for those that an update has claimed. One table holds all groups;
/// groups that are neighbours in it take one launch.
class RoundedShards {
 public:
  /// `buckets` are sorted by group. Adds their all-gathers to `exchanges`. Allocates. Local.
  RoundedShards(const WireContext& context, Travel travel, std::span<const WireBucket> buckets, Exchanges& exchanges);

  void stage(Stream& stream, std::span<const GroupId> groups);

  /// A bucket's slice, which the caller writes: stage() leaves it out until release_claims(). Empty, and nothing
  /// claimed, unless the bucket holds bf16.
  Tensor claim(BucketId bucket);
  void release_claims() { claimed_.assign(claimed_.size(), false); }

 private:
  struct Slice {
    GroupId group;
    BucketId bucket;
    Tensor to, master;
  };
  struct Range {
    int first = 0, last = 0;  ///< range of pairs in the table
    bool wanted = false;
  };
  static std::vector<Slice> slices_of(const WireContext& context, Travel travel, std::span<const WireBucket> buckets,
                                      Exchanges& exchanges);
  bool wanted(const Range& range) const;

  bool claimable_;
  std::vector<Slice> slices_;  ///< in the order of the table's pairs
  std::vector<bool> claimed_;  ///< likewise
  ConvertTable table_;
  IndexedBy<GroupId, Range> ranges_;
};

}  // namespace tessera
