#include "core/optim/optimizers.hpp"

#include "kernels/convert/convert.hpp"

namespace tessera {

Optimizers::Optimizers(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
                       const AdamWSettings& settings)
    : settings_(settings) {
  for (BucketId b : layout.buckets().ids()) {
    const Shape shape{layout.buckets()[b].slice(ranks)};
    m_.push_back(device.allocate(Category::optimizer, DType::f32, shape));
    v_.push_back(device.allocate(Category::optimizer, DType::f32, shape));
    runs_.push_back(runs_of(registry, layout, b, ranks));
  }
}

std::vector<Optimizers::Run> Optimizers::runs_of(const ParamRegistry& registry, const ParamLayout& layout,
                                                 BucketId bucket, const Ranks& ranks) const {
  std::vector<Run> runs;
  for (const Piece& piece : layout.pieces(bucket, ranks)) {
    const auto decay = static_cast<float>(decays(registry[piece.param].role) ? settings_.weight_decay : 0.0);
    if (runs.empty() || runs.back().weight_decay != decay) runs.push_back({piece.shard.value, 0, decay});
    // Gaps between pieces hold zeros in masters, gradients and moments, which a step leaves zero.
    runs.back().count = (piece.shard + piece.count).value - runs.back().begin;
  }
  return runs;
}

void Optimizers::initialise(Stream& stream) {
  for (const Tensor& m : m_) clear(stream, m);
  for (const Tensor& v : v_) clear(stream, v);
}

Updated Optimizers::step(Stream& stream, Clipped&& gradients, const Masters& masters, AdamWClock* clock,
                         const float* rate) {
  adamw_advance(stream, clock, gradients.clip(), settings_.beta1, settings_.beta2);
  for (std::size_t b = 0; b < runs_.size(); ++b) {
    const BucketId bucket{static_cast<int>(b)};
    const Tensor gradient = gradients.shard(bucket), &master = masters.shard(bucket);
    for (const Run& run : runs_[b]) {
      const AdamWRule rule{static_cast<float>(settings_.beta1), static_cast<float>(settings_.beta2),
                           static_cast<float>(settings_.eps), run.weight_decay};
      adamw_step(stream, rule, master.flat(run.begin, run.count), m_[b].flat(run.begin, run.count),
                 v_[b].flat(run.begin, run.count), gradient.flat(run.begin, run.count), clock, gradients.clip(), rate);
    }
  }
  return std::move(gradients).updated();
}

}  // namespace tessera
