#pragma once
#include <span>
#include <vector>

#include "core/device/device.hpp"
#include "core/layout/layout.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {

/// This rank's slices of the masters, rounded to where an all-gather expects them: one launch for each run of
/// neighbours in the table, which all groups together are.
class Slices {
 public:
  struct Slice {
    GroupId group;
    Tensor to, master;
  };
  /// `slices` group by group; `groups` of the whole layout.
  Slices(Device& device, int groups, std::span<const Slice> slices);

  void round(Stream& stream, std::span<const GroupId> groups);

 private:
  struct Range {
    int first = 0, last = 0;  ///< pairs in the table
    bool wanted = false;
  };

  ConvertTable table_;
  IndexedBy<GroupId, Range> ranges_;
};

}  // namespace tessera
