#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

/// What one AdamW step takes besides tensors. The correction terms lie on the device, since they depend on how many
/// updates were applied.
struct AdamWRule {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0;
};
/// Running state on the device: t applied updates, beta^t as running products in double.
struct AdamWClock {
  std::int64_t t = 0;
  double beta1_power = 1, beta2_power = 1;
};

/// Advances the clock unless clip->skip. Call once a step, before the updates.
void adamw_advance(Stream& stream, AdamWClock* clock, const ClipResult* clip, double beta1, double beta2);

/// One update of `n` elements in place: g' = coefficient g; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2;
/// p -= lr ((m/c1) / (sqrt(v/c2) + eps) + wd p), c = 1 - beta^t. All fp32 [n], computed in fp32 in the order written;
/// both moments may be bf16, rounded once after use. Nothing changes when clip->skip is set. `rate` lies on the device.
/// Source: Loshchilov and Hutter 2019.
void adamw_step(Stream& stream, const AdamWRule& rule, const Tensor& master, const Tensor& m, const Tensor& v,
                const Tensor& gradient, const AdamWClock* clock, const ClipResult* clip, const float* rate);

}  // namespace tessera
