#include "kernels/optim/average.hpp"

#include "kernels/base/launch.hpp"

namespace tessera {

void average_step(Stream& stream, const Tensor& average, const Tensor& master, float rate, const ClipResult* clip) {
  const std::int64_t n = average.elements();
  require(master.elements() == n, "average_step", "average and master are [n]");
  float* const averages = average.as<float>();
  const float* const masters = master.as<float>();
  launch(stream, "average_step", n, KOKKOS_LAMBDA(std::int64_t i) {
    if (clip->skip == 0) averages[i] += rate * (masters[i] - averages[i]);  // mutation: skipped_steps_average
  });
}

void exchange_values(Stream& stream, const Tensor& one, const Tensor& other) {
  const std::int64_t n = one.elements();
  require(other.elements() == n, "exchange_values", "both are [n]");
  float *const ones = one.as<float>(), *const others = other.as<float>();
  launch(stream, "exchange_values", n, KOKKOS_LAMBDA(std::int64_t i) {
    const float kept = ones[i];
    ones[i] = others[i];
    others[i] = kept;
  });
}

}  // namespace tessera
