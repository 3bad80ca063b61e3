// Four elements a thread, 16 bytes an access, so that even a small parameter fills the chip.
#include "kernels/base/columns.cuh"
#include "kernels/base/launch.hpp"
#include "kernels/optim/back.hpp"

namespace tessera::optim {
namespace {

using columns::Lanes;

constexpr int lanes = 4, block_threads = 256;

template <class M>
struct Step {
  AdamWRule rule;
  float* p;
  M *m, *v;
  const float* g;
  std::int64_t n;
  const AdamWClock* clock;
  const ClipResult* clip;
  const float* rate;
};

template <class M>
__global__ void __launch_bounds__(block_threads) step_kernel(const Step<M> s) {
  const std::int64_t i = (std::int64_t{blockIdx.x} * block_threads + threadIdx.x) * lanes;
  if (i >= s.n || s.clip->skip != 0) return;
  const bool whole = i + lanes <= s.n;
  Lanes<float, lanes> p{}, g{};
  Lanes<M, lanes> m{}, v{};
  if (whole) {
    p = Lanes<float, lanes>::at(s.p + i), g = Lanes<float, lanes>::at(s.g + i);
    m = Lanes<M, lanes>::at(s.m + i), v = Lanes<M, lanes>::at(s.v + i);
  } else {
    for (int l = 0; i + l < s.n; ++l)
      p.value[l] = s.p[i + l], g.value[l] = s.g[i + l], m.value[l] = s.m[i + l], v.value[l] = s.v[i + l];
  }
  const float coefficient = s.clip->coefficient, lr = *s.rate, b1 = s.rule.beta1, b2 = s.rule.beta2;
  const auto c1 = static_cast<float>(1.0 - s.clock->beta1_power), c2 = static_cast<float>(1.0 - s.clock->beta2_power);
  for (int l = 0; l < lanes; ++l) {
    const float clipped = coefficient * g.value[l];
    const float mean = b1 * static_cast<float>(m.value[l]) + (1.0f - b1) * clipped;
    const float square = b2 * static_cast<float>(v.value[l]) + (1.0f - b2) * (clipped * clipped);
    p.value[l] -= lr * ((mean / c1) / (::sqrtf(square / c2) + s.rule.eps) + s.rule.weight_decay * p.value[l]);
    m.value[l] = static_cast<M>(mean);
    v.value[l] = static_cast<M>(square);
  }
  if (whole) {
    p.to(s.p + i), m.to(s.m + i), v.to(s.v + i);
  } else {
    for (int l = 0; i + l < s.n; ++l) s.p[i + l] = p.value[l], s.m[i + l] = m.value[l], s.v[i + l] = v.value[l];
  }
}

template <class M>
void start(Stream& stream, const Step<M>& s) {
  const auto blocks = static_cast<unsigned>(ceil_div(s.n, block_threads * lanes));
  step_kernel<M><<<blocks, block_threads, 0, space_of(stream).cuda_stream()>>>(s);
}

}  // namespace

bool adamw_step(Stream& stream, const AdamWRule& rule, const Tensor& master, const Tensor& m, const Tensor& v,
                const Tensor& gradient, const AdamWClock* clock, const ClipResult* clip, const float* rate) {
  const std::int64_t n = master.elements();
  if (n == 0 || !columns::aligned(master) || !columns::aligned(m) || !columns::aligned(v) ||
      !columns::aligned(gradient))
    return false;
  stream.count_launch();
  float *const p = master.as<float>(), *const g = gradient.as<float>();
  if (m.type == DType::f32)
    start<float>(stream, {rule, p, m.as<float>(), v.as<float>(), g, n, clock, clip, rate});
  else
    start<bf16>(stream, {rule, p, m.as<bf16>(), v.as<bf16>(), g, n, clock, clip, rate});
  return true;
}

}  // namespace tessera::optim
