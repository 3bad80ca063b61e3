#include "kernels/optim/balance.hpp"

#include "kernels/base/launch.hpp"

namespace tessera {

void balance_step(Stream& stream, const Tensor& state, const Tensor& count, const Tensor& kind, float rate,
                  double slots, const ClipResult* clip) {
  const std::int64_t n = state.elements();
  require(count.elements() == n && kind.elements() == n, "balance_step", "state, count and kind are [n]");
  float* const values = state.as<float>();
  const float *const counts = count.as<float>(), *const kinds = kind.as<float>();
  launch(stream, "balance_step", n, KOKKOS_LAMBDA(std::int64_t i) {
    if (clip->skip != 0 || kinds[i] == BalanceKind::none) return;  // mutation: skipped_steps_balance
    if (kinds[i] == BalanceKind::load) {
      values[i] = counts[i];
      return;
    }
    const double share = static_cast<double>(counts[i]) * static_cast<double>(kinds[i]);
    if (share != slots) values[i] += share < slots ? rate : -rate;
  });
}

}  // namespace tessera
