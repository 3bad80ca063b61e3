#include "core/optim/balance.hpp"

#include <algorithm>

#include "kernels/optim/balance.hpp"

namespace tessera {

Balance::Balance(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
                 std::vector<BucketId> buckets, const BalanceSettings& settings)
    : Rule(std::move(buckets)), device_(device), settings_(settings) {
  for (BucketId b : this->buckets()) {
    const Bucket& bucket = layout.buckets()[b];
    require(bucket.key.owner == OwnerKind::counted, "Balance", "steps buckets whose gradients are counts");
    const std::int64_t size = bucket.slice(ranks);
    Slice& slice = slices_.emplace_back();
    slice.bucket = b;
    slice.kinds.resize(static_cast<std::size_t>(size));  // mutation: gaps_are_balanced
    slice.kind = device.allocate(Category::optimizer, DType::f32, {size});
    for (const ShardRange& piece : layout.shard_ranges(b, ranks)) {
      const ParamSpec& spec = registry[piece.param];
      const auto experts = static_cast<float>(spec.member_elements());
      std::fill_n(slice.kinds.begin() + piece.shard.value, piece.count.value,
                  spec.role == Role::router_load ? BalanceKind::load : experts);
    }
  }
}

void Balance::initialise(Stream& stream) {
  for (const Slice& slice : slices_) device_.upload(stream, slice.kind, slice.kinds.data());
}

void Balance::step(Stream& stream, const Clipped& gradients, const Masters& masters, const RulePlaces&) {
  for (const Slice& slice : slices_)
    balance_step(stream, masters.shard(slice.bucket), gradients.shard(slice.bucket), slice.kind, settings_.rate,
                 settings_.slots, gradients.clip());
}

}  // namespace tessera
