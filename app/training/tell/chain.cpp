#include "app/training/tell/chain.hpp"

#include <bit>

#include "kernels/digest/digest.hpp"

namespace tessera {

std::uint64_t continued(std::uint64_t chain, std::int64_t step, const StepReport& report) {
  const auto mix = [&chain](std::uint64_t bits) { chain = mix64(chain + 0x9E3779B97F4A7C15u) ^ mix64(bits + 1); };
  mix(static_cast<std::uint64_t>(step));
  for (const StepSums& sums : report.sums)
    for (const double sum : {sums.loss, sums.balance, sums.z, sums.busiest}) mix(std::bit_cast<std::uint64_t>(sum));
  mix(std::bit_cast<std::uint32_t>(report.clip.norm));
  mix(std::bit_cast<std::uint32_t>(report.clip.coefficient));
  mix(static_cast<std::uint64_t>(report.clip.skip));
  return chain;
}

}  // namespace tessera
