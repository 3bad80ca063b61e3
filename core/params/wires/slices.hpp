#pragma once
#include <span>
#include <vector>

#include "core/device/device.hpp"
#include "core/layout/layout.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {

/// Rounds this rank's slices of the masters into the buffers of an all-gather, but for those that an update has
/// claimed. One table holds all groups; groups that are neighbours in it take one launch.
class Slices {
 public:
  struct Slice {
    GroupId group;
    BucketId bucket;
    Tensor to, master;
  };
  /// `slices` are sorted by group; `groups` is the number of groups of the whole layout.
  Slices(Device& device, int groups, std::span<const Slice> slices);

  void round(Stream& stream, std::span<const GroupId> groups);

  /// The place of a bucket's slice, which the caller writes: round() leaves it out until release_claims().
  Tensor claim(BucketId bucket);
  void release_claims() { claimed_.assign(claimed_.size(), false); }

 private:
  struct Range {
    int first = 0, last = 0;  ///< range of pairs in the table
    bool wanted = false;
  };
  bool wanted(const Range& range) const;

  std::vector<Slice> slices_;  ///< in the order of the table's pairs
  std::vector<bool> claimed_;  ///< likewise
  ConvertTable table_;
  IndexedBy<GroupId, Range> ranges_;
};

}  // namespace tessera
