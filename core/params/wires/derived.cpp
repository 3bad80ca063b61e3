#include "core/params/wires/derived.hpp"

#include <algorithm>
#include <iterator>

#include "core/params/placed_table.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera {

DerivedArrays::DerivedArrays(const WireContext& context, FormatId format, std::span<const WireBucket> buckets,
                             DerivedFrom from, const Matrices& matrices)
    : from_(from),
      tables_(buckets.front().places.size(),
              IndexedBy<GroupId, std::optional<QuantizeTable>>(context.layout.groups().size())) {
  for (std::size_t place = 0; place < tables_.size(); ++place)
    for (GroupId group : context.layout.groups().ids()) {
      std::vector<QuantizedMatrix> all;
      for (std::size_t i = 0; i < buckets.size(); ++i)
        if (buckets[i].group == group) std::ranges::move(matrices(place, i), std::back_inserter(all));
      if (!all.empty()) tables_[place][group] = placed(context.device, QuantizeTable(format, all));
    }
}

void DerivedArrays::build(Stream& stream, GroupId group, const Gathered& held) const {
  const auto place = static_cast<std::size_t>(held.place);
  if (held.sides == Sides::none || place >= tables_.size()) return;  // nothing to derive, or another wire's slot
  const std::optional<QuantizeTable>& table = tables_[place][group];
  if (!table) return;
  if (from_ == DerivedFrom::bf16) return quantize(stream, *table);
  build_columnwise(stream, *table);  // mutation: columnwise_of_the_first_publish
}

}  // namespace tessera
