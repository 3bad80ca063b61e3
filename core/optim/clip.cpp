#include "core/optim/clip.hpp"

#include <algorithm>
#include <array>

#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

/// Adds the squares of this rank's slices of all buckets, in calls of as many slices as the array holds.
void add_all_squares(Stream& stream, const Tensor& words, const Reduced& gradients) {
  std::array<Tensor, 64> some;
  const auto all = static_cast<std::size_t>(gradients.buckets());
  for (std::size_t begin = 0; begin < all; begin += some.size()) {
    const std::size_t count = std::min(some.size(), all - begin);
    for (std::size_t i = 0; i < count; ++i) some[i] = gradients.shard({static_cast<int>(begin + i)});
    add_squares(stream, words, {some.data(), count});
  }
}

}  // namespace

void decide_clipping(Stream& stream, const Reduced& gradients, Communicator& world, const Tensor& words,
                     ClipResult* result, float clip, const float* limit, const Tensor& not_finite) {
  clear(stream, words);
  add_all_squares(stream, words, gradients);
  if (not_finite) add_not_finite(stream, words, not_finite);
  if (world.size() > 1) {
    const Exchange sum{{}, words, {}, {}};
    world.submit(stream, {Collective::all_reduce_sum, {&sum, 1}, -1, "norm"}).wait(stream);
  }
  clip_from_squares(stream, result, words, clip, limit);
}

}  // namespace tessera
