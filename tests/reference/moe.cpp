#include "tests/reference/moe.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tessera::reference {
namespace {
struct Sizes {
  explicit Sizes(const RouterShape& s)
      : tokens(static_cast<std::size_t>(s.tokens())), experts(static_cast<std::size_t>(s.experts)),
        k(static_cast<std::size_t>(s.top_k)), length(static_cast<std::size_t>(s.length)),
        sequences(static_cast<std::size_t>(s.sequences)), capacity(s.capacity) {}
  std::size_t tokens, experts, k, length, sequences;
  std::int64_t capacity;
};

void place_rows(const Sizes& n, Routed& out) {
  out.offsets = {0};
  out.row_of_slot.assign(n.tokens * n.k, -1);
  for (std::size_t e = 0; e < n.experts; ++e) {
    for (std::size_t slot = 0; slot < out.expert.size(); ++slot) {
      if (out.expert[slot] != static_cast<std::int32_t>(e)) continue;
      const std::int32_t before = out.load[slot / (n.length * n.k) * n.experts + e]++;  // in its sequence
      if (n.capacity > 0 && before >= n.capacity) continue;
      out.row_of_slot[slot] = static_cast<std::int32_t>(out.token_of_row.size());
      out.token_of_row.push_back(static_cast<std::int32_t>(slot / n.k));
    }
    out.offsets.push_back(static_cast<std::int32_t>(out.token_of_row.size()));
  }
  out.token_of_row.resize(n.tokens * n.k, -1);
}
}  // namespace

std::vector<std::int32_t> ranked(const RouterShape& shape, std::span<const double> choice) {
  // Sorted descending, NaN behind all; stable, so that ties keep the order of indices.
  const auto before = [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a > b; };
  const auto order_of = [&](const std::vector<double>& values) {
    std::vector<std::int32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return before(values[static_cast<std::size_t>(a)], values[static_cast<std::size_t>(b)]);
    });
    return order;
  };
  const auto groups = static_cast<std::size_t>(shape.rule.groups), each = choice.size() / groups;
  std::vector<double> sums;
  for (std::size_t g = 0; g < groups; ++g) {
    std::vector<double> own(choice.begin() + static_cast<std::ptrdiff_t>(g * each),
                            choice.begin() + static_cast<std::ptrdiff_t>((g + 1) * each));
    std::sort(own.begin(), own.end(), before);
    sums.push_back(each == 1 ? own[0] : own[0] + own[1]);
  }
  std::vector<bool> stays(groups);
  const std::vector<std::int32_t> best = order_of(sums);
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.rule.top_groups); ++i)
    stays[static_cast<std::size_t>(best[i])] = true;
  std::vector<double> masked(choice.begin(), choice.end());
  for (std::size_t e = 0; e < masked.size(); ++e)
    if (!stays[e / each] && !std::isnan(masked[e])) masked[e] = -std::numeric_limits<double>::infinity();
  return order_of(masked);
}

Routed route(const RouterShape& shape, std::span<const double> logits, std::span<const double> bias) {
  const Sizes n(shape);
  Routed out;
  out.load.resize(n.sequences * n.experts);
  for (double z : logits)
    out.logits.push_back(shape.rule.logits == DType::bf16 ? static_cast<double>(bf16(static_cast<float>(z))) : z);
  for (std::size_t m = 0; m < n.tokens; ++m) {
    const auto z = std::span(out.logits).subspan(m * n.experts, n.experts);
    const double top = *std::max_element(z.begin(), z.end());
    double sum = 0, chosen = 1e-20;
    for (double l : z) sum += std::exp(l - top);
    for (double l : z)
      out.scores.push_back(shape.rule.scores == Scores::softmax ? std::exp(l - top) / sum : 1 / (1 + std::exp(-l)));
    out.log_sum.push_back(top + std::log(sum));

    const std::span s = std::span(out.scores).subspan(m * n.experts, n.experts);
    std::vector<double> choice(s.begin(), s.end());
    for (std::size_t e = 0; e < bias.size(); ++e) choice[e] += bias[e];
    std::vector<std::int32_t> order = ranked(shape, choice);
    order.resize(n.k);
    for (std::int32_t e : order) chosen += s[static_cast<std::size_t>(e)];
    for (std::int32_t e : order) {
      out.expert.push_back(e);
      out.weight.push_back(s[static_cast<std::size_t>(e)] / (shape.renormalize ? chosen : 1) * shape.rule.scale);
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

namespace {
/// A token's scores as shares of their sum; of softmax themselves.
std::vector<double> shares(const RouterShape& shape, const Routed& routed, std::size_t token) {
  const auto begin = routed.scores.begin() + static_cast<std::ptrdiff_t>(token) * shape.experts;
  std::vector<double> q(begin, begin + shape.experts);
  if (shape.rule.scores == Scores::softmax) return q;
  const double sum = std::accumulate(q.begin(), q.end(), 1e-20);
  for (double& one : q) one /= sum;
  return q;
}
/// An expert's share of a sequence's slots, or of those that a batch counted.
double share_of_slots(const Sizes& n, const Routed& routed, std::span<const double> counted, std::size_t sequence,
                      std::size_t expert) {
  if (counted.empty()) return routed.load[sequence * n.experts + expert] / static_cast<double>(n.length * n.k);
  const double sum = std::accumulate(counted.begin(), counted.end(), 0.0);
  return sum == 0 ? 0 : counted[expert] / sum;
}
}  // namespace

AuxiliaryLosses auxiliary_losses(const RouterShape& shape, const Routed& routed, std::span<const double> counted) {
  const Sizes n(shape);
  const auto length = static_cast<double>(n.length);
  AuxiliaryLosses out;
  for (std::size_t b = 0; b < n.sequences; ++b)
    for (std::size_t e = 0; e < n.experts; ++e) {
      double mean = 0;
      for (std::size_t t = 0; t < n.length; ++t)
        mean += shares(shape, routed, b * n.length + t)[e] / length;
      out.balance += static_cast<double>(n.experts) * share_of_slots(n, routed, counted, b, e) * mean;
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
                                   double balance_scale, double z_scale, std::span<const double> counted) {
  const Sizes n(shape);
  const auto experts = static_cast<double>(n.experts), length = static_cast<double>(n.length);
  const bool sigmoid = shape.rule.scores == Scores::sigmoid;
  std::vector<double> out(n.tokens * n.experts);
  for (std::size_t m = 0; m < n.tokens; ++m) {
    const double* s = routed.scores.data() + m * n.experts;
    const std::vector<double> q = shares(shape, routed, m);
    // Slopes of the weights by the scores, and of the balance loss by the shares.
    std::vector<double> ds(n.experts), g(n.experts);
    for (std::size_t e = 0; e < n.experts; ++e) {
      g[e] = balance_scale * experts * share_of_slots(n, routed, counted, m / n.length, e) / length;
    }
    double chosen = 1e-20, along = 0;
    const auto expert = [&](std::size_t j) { return static_cast<std::size_t>(routed.expert[m * n.k + j]); };
    for (std::size_t j = 0; j < n.k; ++j) {
      chosen += s[expert(j)];
      along += shape.rule.scale * dweight[m * n.k + j] * s[expert(j)];
    }
    for (std::size_t j = 0; j < n.k; ++j) {
      const double d = shape.rule.scale * dweight[m * n.k + j];
      ds[expert(j)] += shape.renormalize ? d / chosen - along / (chosen * chosen) : d;
    }
    double inner = 0, mean = 0, sum = 0;
    for (std::size_t e = 0; e < n.experts; ++e) {
      inner += s[e] * ds[e];
      mean += q[e] * g[e];
      sum += s[e];
    }
    for (std::size_t e = 0; e < n.experts; ++e) {
      const double p = std::exp(routed.logits[m * n.experts + e] - routed.log_sum[m]);
      const double slope = sigmoid ? s[e] * (1 - s[e]) * (ds[e] + (g[e] - mean) / sum)
                                   : s[e] * (ds[e] - inner) + q[e] * (g[e] - mean);
      out[m * n.experts + e] = slope + 2 * z_scale * routed.log_sum[m] * p;
    }
  }
  return out;
}

template <class T>
std::vector<T> sum_slots(const RouterShape& shape, const Routed& routed, std::span<const T> rows,
                         std::span<const Accumulator<T>> weight, std::size_t columns, const SlotTerms<T>& terms) {
  const Sizes n(shape);
  std::vector<T> y;
  for (std::size_t m = 0; m < n.tokens; ++m)
    for (std::size_t c = 0; c < columns; ++c) {
      const std::size_t at = m * columns + c;
      Accumulator<T> total = terms.first.empty() ? Accumulator<T>(0) : Accumulator<T>(terms.first[at]);
      for (std::size_t e = 0; e < n.experts; ++e)
        for (std::size_t slot = m * n.k; slot < (m + 1) * n.k; ++slot) {
          if (routed.expert[slot] != static_cast<std::int32_t>(e) || routed.row_of_slot[slot] < 0) continue;
          const auto v = Accumulator<T>(rows[static_cast<std::size_t>(routed.row_of_slot[slot]) * columns + c]);
          total += weight.empty() ? v : weight[slot] * v;
        }
      if (!terms.last.empty()) total += Accumulator<T>(terms.last[at]);
      y.push_back(T(total));
    }
  return y;
}
template std::vector<double> sum_slots(const RouterShape&, const Routed&, std::span<const double>,
                                       std::span<const double>, std::size_t, const SlotTerms<double>&);
template std::vector<float> sum_slots(const RouterShape&, const Routed&, std::span<const float>, std::span<const float>,
                                      std::size_t, const SlotTerms<float>&);
template std::vector<bf16> sum_slots(const RouterShape&, const Routed&, std::span<const bf16>, std::span<const float>,
                                     std::size_t, const SlotTerms<bf16>&);

}  // namespace tessera::reference
