#pragma once
#include <span>
#include <vector>

#include "core/device/device.hpp"
#include "core/layout/layout.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {

/// Rounds this rank's slices of the masters into the buffers of an all-gather. One table holds all groups; groups that
/// are neighbours in it take one launch.
class Slices {
 public:
  struct Slice {
    GroupId group;
    Tensor to, master;
  };
  /// `slices` are sorted by group; `groups` is the number of groups of the whole layout.
  Slices(Device& device, int groups, std::span<const Slice> slices);

  void round(Stream& stream, std::span<const GroupId> groups);

 private:
  struct Range {
    int first = 0, last = 0;  ///< range of pairs in the table
    bool wanted = false;
  };

  ConvertTable table_;
  IndexedBy<GroupId, Range> ranges_;
};

}  // namespace tessera
