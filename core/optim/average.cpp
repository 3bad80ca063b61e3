#include "core/optim/average.hpp"

#include "kernels/convert/convert.hpp"
#include "kernels/optim/average.hpp"

namespace tessera {

Average::Average(Device& device, const ParamLayout& layout, const Ranks& ranks, double decay)
    : rate_(static_cast<float>(1 - decay)) {  // mutation: averages_of_another_decay
  for (BucketId b : layout.buckets().ids())
    slices_.push_back({b, device.allocate(Category::optimizer, DType::f32, {layout.buckets()[b].slice(ranks)})});
}

void Average::initialise(Stream& stream, const Masters& masters) {
  for (const BucketSlice& slice : slices_) copy(stream, slice.values, masters.shard(slice.bucket));
}

void Average::clear(Stream& stream) {
  for (const BucketSlice& slice : slices_) tessera::clear(stream, slice.values);
}

void Average::step(Stream& stream, const Masters& masters, const ClipResult* clip) {
  for (const BucketSlice& slice : slices_)
    average_step(stream, slice.values, masters.shard(slice.bucket), rate_, clip);
}

}  // namespace tessera
