#include "kernels/optim/adamw.hpp"

#include <cmath>

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/optim/back.hpp"

namespace tessera {
namespace {

constexpr std::int64_t chunk = 2048;

// M is the type in which the moments are kept.
template <class M>
void step_as(Stream& stream, const AdamWRule& rule, const Tensor& master, const Tensor& m, const Tensor& v,
             const Tensor& gradient, const AdamWClock* clock, const ClipResult* clip, const float* rate) {
  const auto p = view_of<float>(master), g = view_of<float>(gradient);
  const auto first = view_of<M>(m), second = view_of<M>(v);
  const std::int64_t n = master.elements();
  launch_rows(
      stream, "adamw_step", ceil_div(n, chunk), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        if (clip->skip != 0) return;
        const std::int64_t begin = r * chunk, count = n - begin < chunk ? n - begin : chunk;
        const float coefficient = clip->coefficient, lr = *rate;
        const float b1 = rule.beta1, b2 = rule.beta2, eps = rule.eps, decay = rule.weight_decay;
        const auto c1 = static_cast<float>(1.0 - clock->beta1_power), c2 = static_cast<float>(1.0 - clock->beta2_power);
        row.each(count, [=](std::int64_t j) {
          const std::int64_t i = begin + j;
          const float clipped = coefficient * g(i);
          const float mean = b1 * static_cast<float>(first(i)) + (1.0f - b1) * clipped;
          const float square = b2 * static_cast<float>(second(i)) + (1.0f - b2) * (clipped * clipped);
          p(i) -= lr * ((mean / c1) / (::sqrtf(square / c2) + eps) + decay * p(i));
          first(i) = static_cast<M>(mean);
          second(i) = static_cast<M>(square);
        });
      });
}

}  // namespace

void adamw_advance(Stream& stream, AdamWClock* clock, const ClipResult* clip, double beta1, double beta2) {
  launch(
      stream, "adamw_advance", 1, KOKKOS_LAMBDA(std::int64_t) {
        if (clip->skip != 0) return;
        clock->t += 1;
        clock->beta1_power *= beta1;
        clock->beta2_power *= beta2;
      });
}

void adamw_step(Stream& stream, const AdamWRule& rule, const Tensor& master, const Tensor& m, const Tensor& v,
                const Tensor& gradient, const AdamWClock* clock, const ClipResult* clip, const float* rate) {
  const std::int64_t n = master.elements();
  require(m.elements() == n && v.elements() == n && gradient.elements() == n, "adamw_step", "all tensors are [n]");
  require(master.type == DType::f32 && gradient.type == DType::f32, "adamw_step", "master and gradient are f32");
  require(m.type == v.type && (m.type == DType::f32 || m.type == DType::bf16), "adamw_step",
          "both moments are f32 or both bf16");
  if (!stream.dry() && optim::adamw_step(stream, rule, master, m, v, gradient, clock, clip, rate)) return;
  if (m.type == DType::f32)
    step_as<float>(stream, rule, master, m, v, gradient, clock, clip, rate);
  else
    step_as<bf16>(stream, rule, master, m, v, gradient, clock, clip, rate);
}

}  // namespace tessera
