#include "core/params/wires/wire.hpp"

namespace tessera {

Wire::Wire(const WireContext& context, Travel travel, std::span<const WireBucket> buckets)
    : exchanges_(context.layout, buckets.front().places.size()),
      operands_(buckets.front().places.size(), IndexedBy<ParamId, std::array<Operand, 2>>(context.registry.size())) {
  for (const WireBucket& own : buckets)
    for (std::size_t place = 0; place < operands_.size(); ++place)
      for (const Placement& p : context.bucket(own).parameters())
        for (const Side side : {Side::rowwise, Side::columnwise})
          operands_[place][p.param][static_cast<std::size_t>(side)] =
              operand_in(context, context.bucket(own), p, travel, own.places[place], side);

  const std::optional<FormatId>& format = context.bucket(buckets.front()).key.format.codes;
  if (travel == Travel::plain) {
    rounded_.emplace(context, travel, buckets, exchanges_);
  } else if (travel == Travel::codes || buckets.front().shard_apart()) {
    codes_.emplace(context, *format, buckets, exchanges_);
    derived_ = codes_->derived(context);
  } else {
    rounded_.emplace(context, travel, buckets, exchanges_);
    const auto matrices = [&](std::size_t, std::size_t i) { return staged_matrices_of(context, buckets[i]); };
    derived_.emplace(context, *format, buckets, DerivedFrom::bf16, matrices);
  }
}

}  // namespace tessera
