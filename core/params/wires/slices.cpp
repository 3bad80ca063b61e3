#include "core/params/wires/slices.hpp"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

ConvertTable table_of(std::span<const Slices::Slice> slices) {
  std::vector<ConvertTable::Pair> pairs;
  for (const Slices::Slice& slice : slices) pairs.push_back({slice.to, slice.master});
  return ConvertTable(pairs);
}

}  // namespace

Slices::Slices(Device& device, int groups, std::span<const Slice> slices)
    : slices_(slices.begin(), slices.end()), claimed_(slices.size()), table_(table_of(slices)), ranges_(groups) {
  const Tensor memory = device.allocate(Category::weights, DType::u8, {table_.bytes()});
  device.upload(device.compute(), memory, table_.image());
  table_.place(memory);
  int pairs = 0;
  for (const Slice& slice : slices) {
    Range& range = ranges_[slice.group];
    if (range.first == range.last) range.first = pairs;
    range.last = ++pairs;
  }
}

Tensor Slices::claim(BucketId bucket) {
  const auto slice = std::ranges::find(slices_, bucket, &Slice::bucket);
  require(slice != slices_.end(), "Slices", "holds no slice of this bucket");
  claimed_[static_cast<std::size_t>(slice - slices_.begin())] = true;
  return slice->to;
}

bool Slices::wanted(const Range& range) const {
  return std::find(claimed_.begin() + range.first, claimed_.begin() + range.last, false) !=
         claimed_.begin() + range.last;
}

void Slices::round(Stream& stream, std::span<const GroupId> groups) {
  for (GroupId group : groups) ranges_[group].wanted = wanted(ranges_[group]);
  int first = 0, last = 0;
  for (Range& range : ranges_) {
    if (!std::exchange(range.wanted, false)) continue;
    if (range.first != last) {
      convert(stream, table_, first, last);
      first = range.first;
    }
    last = range.last;
  }
  convert(stream, table_, first, last);
}

}  // namespace tessera
