#include "core/optim/clip.hpp"

#include <array>
#include <utility>

#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

/// Adds the squares of this rank's slices of all buckets but counted ones, in calls of as many slices as the array
/// holds.
void add_all_squares(Stream& stream, const Tensor& words, const Reduced& gradients, const ParamLayout& layout) {
  std::array<Tensor, 64> some;
  std::size_t count = 0;
  const auto add = [&] {
    if (count > 0) add_squares(stream, words, {some.data(), std::exchange(count, 0)});
  };
  for (BucketId b : layout.buckets().ids()) {
    if (layout.buckets()[b].key.owner == OwnerKind::counted) continue;  // mutation: counts_in_the_norm
    some[count++] = gradients.shard(b);
    if (count == some.size()) add();
  }
  add();
}

}  // namespace

void decide_clipping(Stream& stream, const Reduced& gradients, const ParamLayout& layout, Communicator& world,
                     const Tensor& words, ClipResult* result, float clip, const float* limit,
                     const Tensor& not_finite, const Tensor& also) {
  clear(stream, words);
  add_all_squares(stream, words, gradients, layout);
  if (not_finite) add_not_finite(stream, words, not_finite);  // mutation: one_rank_skips.1
  if (world.size() > 1) {  // mutation: norm_of_one_rank
    const Exchange sums[] = {{{}, words, {}, {}}, {{}, also, {}, {}}};
    // mutation: routing_of_one_rank
    world.submit(stream, {Collective::all_reduce_sum, {sums, also ? 2u : 1u}, -1, "norm"}).wait(stream);
  }
  clip_from_squares(stream, result, words, clip, limit);  // mutation: one_rank_skips.2
}

}  // namespace tessera
