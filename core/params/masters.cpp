#include "core/params/masters.hpp"

#include "core/params/tokens.hpp"
#include "core/state/state_dict.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/optim/average.hpp"
#include "kernels/random/random.hpp"

namespace tessera {
namespace {

/// Draws the initial values of `piece`; the vocabulary's padding stays zero.
void start(Stream& stream, const Tensor& shard, const ShardRange& piece, const ParamSpec& spec, std::uint64_t seed) {
  const Tensor values = shard.flat(piece.shard.value, piece.real.value);
  switch (spec.start.kind) {
    case Start::Kind::zero:
      return;
    case Start::Kind::one:
      return fill(stream, values, 1);
    case Start::Kind::normal: {
      const RandomKey key = random_key(seed, "init", spec.canonical.name, 0);
      return fill_normal(stream, values, key, static_cast<std::uint64_t>(piece.canonical.value), spec.start.deviation);
    }
  }
}

}  // namespace

Masters::Masters(Device& device, const ParamLayout& layout, const Ranks& ranks) {
  for (const Bucket& bucket : layout.buckets())
    shards_.add(device.allocate(Category::masters, DType::f32, {bucket.slice(ranks)}));
}

Updated Masters::initialise(Stream& stream, const ParamRegistry& registry, const ParamLayout& layout,
                            const Ranks& ranks, std::uint64_t seed) {
  for (BucketId b : shards_.ids()) {
    clear(stream, shards_[b]);
    for (const ShardRange& piece : layout.shard_ranges(b, ranks))
      start(stream, shards_[b], piece, registry[piece.param], seed);
  }
  return Updated(Updated::Weights::current);
}

StateDict Masters::state(const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks) const {
  std::vector<BucketSlice> slices;
  for (BucketId b : shards_.ids()) slices.push_back({b, shards_[b]});
  StateDict state;
  state.add({"model", slices}, registry, layout, ranks);
  return state;
}

Updated Masters::exchange(Stream& stream, std::span<const BucketSlice> others) {
  for (const BucketSlice& other : others) exchange_values(stream, shards_[other.bucket], other.values);
  return Updated(Updated::Weights::current);
}

Updated Masters::restore(Stream& stream, const std::function<void()>& fill) {
  for (const Tensor& shard : shards_) clear(stream, shard);
  fill();
  return Updated(Updated::Weights::current);
}

}  // namespace tessera
