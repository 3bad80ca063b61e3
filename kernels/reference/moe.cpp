#include "kernels/reference/moe.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera::reference {
namespace {
struct Sizes {
  explicit Sizes(const RouterShape& s)
      : tokens(static_cast<std::size_t>(s.tokens())), experts(static_cast<std::size_t>(s.experts)),
        k(static_cast<std::size_t>(s.top_k)), length(static_cast<std::size_t>(s.length)),
        sequences(static_cast<std::size_t>(s.sequences)) {}
  std::size_t tokens, experts, k, length, sequences;
};

void place_rows(const Sizes& n, Routed& out) {
  out.offsets = {0};
  out.row_of_slot.resize(n.tokens * n.k);
  for (std::size_t e = 0; e < n.experts; ++e) {
    for (std::size_t slot = 0; slot < out.expert.size(); ++slot) {
      if (out.expert[slot] != static_cast<std::int32_t>(e)) continue;
      out.row_of_slot[slot] = static_cast<std::int32_t>(out.token_of_row.size());
      out.token_of_row.push_back(static_cast<std::int32_t>(slot / n.k));
      ++out.load[slot / (n.length * n.k) * n.experts + e];
    }
    out.offsets.push_back(static_cast<std::int32_t>(out.token_of_row.size()));
  }
}
}  // namespace

Routed route(const RouterShape& shape, std::span<const double> logits) {
  const Sizes n(shape);
  Routed out;
  out.load.resize(n.sequences * n.experts);
  for (std::size_t m = 0; m < n.tokens; ++m) {
    const auto z = logits.subspan(m * n.experts, n.experts);
    const double top = *std::max_element(z.begin(), z.end());
    double sum = 0, chosen = 0;
    for (double l : z) sum += std::exp(l - top);
    for (double l : z) out.probabilities.push_back(std::exp(l - top) / sum);
    out.log_sum.push_back(top + std::log(sum));

    std::vector<std::int32_t> order(n.experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return z[static_cast<std::size_t>(a)] > z[static_cast<std::size_t>(b)];
    });
    order.resize(n.k);
    const auto p = [&](std::int32_t e) { return out.probabilities[m * n.experts + static_cast<std::size_t>(e)]; };
    for (std::int32_t e : order) chosen += p(e);
    for (std::int32_t e : order) {
      out.expert.push_back(e);
      out.weight.push_back(shape.renormalize ? p(e) / chosen : p(e));
    }
  }
  place_rows(n, out);
  return out;
}

Arrived arrive(const ArrivalShape& shape, std::span<const std::int32_t> counts) {
  std::vector<std::int64_t> needed(static_cast<std::size_t>(shape.ranks));
  std::vector<std::vector<std::int32_t>> of_expert(static_cast<std::size_t>(shape.held()));
  std::int32_t arrived = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::int64_t expert = static_cast<std::int64_t>(i) % shape.experts;
    needed[static_cast<std::size_t>(expert / shape.held())] += counts[i];
    if (expert / shape.held() != shape.place) continue;
    for (std::int32_t n = 0; n < counts[i]; ++n)
      of_expert[static_cast<std::size_t>(expert % shape.held())].push_back(arrived++);
  }
  Arrived out;
  const bool fits = *std::max_element(needed.begin(), needed.end()) <= shape.room;
  out.seen.most = static_cast<double>(needed[static_cast<std::size_t>(shape.place)]) / static_cast<double>(shape.share);
  out.seen.refused = !fits;
  out.row_of_slot.resize(fits ? static_cast<std::size_t>(arrived) : 0);
  out.offsets = {0};
  for (const auto& rows : of_expert) {
    for (std::int32_t m : rows) {
      if (!fits) break;
      out.row_of_slot[static_cast<std::size_t>(m)] = static_cast<std::int32_t>(out.token_of_row.size());
      out.token_of_row.push_back(m);
    }
    while (std::ssize(out.token_of_row) % shape.row_multiple != 0) out.token_of_row.push_back(-1);
    out.offsets.push_back(static_cast<std::int32_t>(out.token_of_row.size()));
  }
  return out;
}

AuxiliaryLosses auxiliary_losses(const RouterShape& shape, const Routed& routed) {
  const Sizes n(shape);
  const auto length = static_cast<double>(n.length), slots = static_cast<double>(n.length * n.k);
  AuxiliaryLosses out;
  for (std::size_t b = 0; b < n.sequences; ++b)
    for (std::size_t e = 0; e < n.experts; ++e) {
      double mean = 0;
      for (std::size_t t = 0; t < n.length; ++t)
        mean += routed.probabilities[(b * n.length + t) * n.experts + e] / length;
      out.balance += static_cast<double>(n.experts) * routed.load[b * n.experts + e] / slots * mean;
    }
  for (double lse : routed.log_sum) out.z += lse * lse;
  return out;
}

std::int64_t busiest_expert(const RouterShape& shape, const Routed& routed) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(shape.experts));
  for (const std::int32_t expert : routed.expert) ++slots[static_cast<std::size_t>(expert)];
  return *std::max_element(slots.begin(), slots.end());
}

std::vector<double> route_backward(const RouterShape& shape, const Routed& routed, std::span<const double> dweight,
                                   double balance_scale, double z_scale) {
  const Sizes n(shape);
  const auto experts = static_cast<double>(n.experts), length = static_cast<double>(n.length);
  std::vector<double> out(n.tokens * n.experts);
  for (std::size_t m = 0; m < n.tokens; ++m) {
    const double* p = routed.probabilities.data() + m * n.experts;
    std::vector<double> dp(n.experts);
    for (std::size_t e = 0; e < n.experts; ++e) {
      const double f = routed.load[m / n.length * n.experts + e] / (length * static_cast<double>(n.k));
      dp[e] = balance_scale * experts * f / length;
    }
    double chosen = 0, along = 0;
    const auto expert = [&](std::size_t j) { return static_cast<std::size_t>(routed.expert[m * n.k + j]); };
    for (std::size_t j = 0; j < n.k; ++j) {
      chosen += p[expert(j)];
      along += dweight[m * n.k + j] * p[expert(j)];
    }
    for (std::size_t j = 0; j < n.k; ++j) {
      const double d = dweight[m * n.k + j];
      dp[expert(j)] += shape.renormalize ? d / chosen - along / (chosen * chosen) : d;
    }
    double inner = 0;
    for (std::size_t e = 0; e < n.experts; ++e) inner += p[e] * dp[e];
    for (std::size_t e = 0; e < n.experts; ++e)
      out[m * n.experts + e] = p[e] * (dp[e] - inner) + 2 * z_scale * routed.log_sum[m] * p[e];
  }
  return out;
}

template <class T>
std::vector<T> sum_slots(const RouterShape& shape, const Routed& routed, std::span<const T> rows,
                         std::span<const Accumulator<T>> weight, std::size_t columns) {
  const Sizes n(shape);
  std::vector<T> y;
  for (std::size_t m = 0; m < n.tokens; ++m)
    for (std::size_t c = 0; c < columns; ++c) {
      Accumulator<T> total = 0;
      for (std::size_t e = 0; e < n.experts; ++e)
        for (std::size_t slot = m * n.k; slot < (m + 1) * n.k; ++slot) {
          if (routed.expert[slot] != static_cast<std::int32_t>(e)) continue;
          const auto v = Accumulator<T>(rows[static_cast<std::size_t>(routed.row_of_slot[slot]) * columns + c]);
          total += weight.empty() ? v : weight[slot] * v;
        }
      y.push_back(T(total));
    }
  return y;
}
template std::vector<double> sum_slots(const RouterShape&, const Routed&, std::span<const double>,
                                       std::span<const double>, std::size_t);
template std::vector<float> sum_slots(const RouterShape&, const Routed&, std::span<const float>, std::span<const float>,
                                      std::size_t);
template std::vector<bf16> sum_slots(const RouterShape&, const Routed&, std::span<const bf16>, std::span<const float>,
                                     std::size_t);

}  // namespace tessera::reference
