#include "core/optim/clip.hpp"

#include "kernels/convert/convert.hpp"

namespace tessera {

Clipped clip(Stream& stream, Reduced&& gradients, Communicator& world, const Tensor& words, ClipResult* result,
             float clip, const float* limit, const Tensor& not_finite) {
  clear(stream, words);
  for (int b = 0; b < gradients.buckets(); ++b) add_squares(stream, words, gradients.shard({b}));
  if (not_finite) add_not_finite(stream, words, not_finite);
  if (world.size() > 1) {
    const Exchange sum{{}, words, {}, {}};
    world.submit(stream, {Collective::all_reduce_sum, {&sum, 1}, -1, "norm"}).wait(stream);
  }
  clip_from_squares(stream, result, words, clip, limit);
  return std::move(gradients).clipped(result);
}

}  // namespace tessera
