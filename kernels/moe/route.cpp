#include "kernels/base/launch.hpp"
#include "kernels/base/math.hpp"
#include "kernels/moe/moe.hpp"
#include "kernels/sort/sort.hpp"

namespace tessera {
namespace {

// Chooses the k most probable experts of a token, most probable first. A NaN ranks below every probability, so that the
// chosen experts are valid whatever the logits are.
template <class A>
KOKKOS_INLINE_FUNCTION void choose(std::int32_t* chosen, const A* p, std::int32_t experts, std::int64_t k) {
  A last = A(2);
  std::int32_t previous = -1;
  for (std::int64_t j = 0; j < k; ++j) {
    std::int32_t best = -1;
    A top = A(-2);
    for (std::int32_t e = 0; e < experts; ++e) {
      const A rank = p[e] >= A(0) ? p[e] : A(-1);
      const bool remains = rank < last || (rank == last && e > previous);
      if (remains && rank > top) {
        best = e;
        top = rank;
      }
    }
    chosen[j] = previous = best;
    last = top;
  }
}

template <class A>
void choose_experts(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& logits) {
  const auto experts = static_cast<std::int32_t>(shape.experts);
  const std::int64_t k = shape.top_k;
  const bool renormalize = shape.renormalize;
  const A* const in = logits.as<A>();
  A *const probabilities = routing.probabilities.as<A>(), *const log_sum = routing.log_sum.as<A>();
  A* const weights = routing.weight.as<A>();
  std::int32_t* const expert = routing.expert.as<std::int32_t>();
  launch(stream, "route", shape.tokens(), KOKKOS_LAMBDA(std::int64_t m) {
    const A* const z = in + m * experts;
    A* const p = probabilities + m * experts;
    A top = z[0], sum = 0;
    for (std::int32_t e = 1; e < experts; ++e) top = z[e] > top ? z[e] : top;
    for (std::int32_t e = 0; e < experts; ++e) p[e] = exp_of(z[e] - top);
    for (std::int32_t e = 0; e < experts; ++e) sum += p[e];
    for (std::int32_t e = 0; e < experts; ++e) p[e] /= sum;
    log_sum[m] = top + log_of(sum);

    std::int32_t* const chosen = expert + m * k;
    choose(chosen, p, experts, k);
    A total = 0;
    for (std::int64_t j = 0; j < k; ++j) total += p[chosen[j]];
    for (std::int64_t j = 0; j < k; ++j) weights[m * k + j] = renormalize ? p[chosen[j]] / total : p[chosen[j]];
  });
}

// Turns offsets without gaps into offsets in which each expert's rows begin at a multiple of row_multiple.
void spread(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& compact) {
  const std::int64_t multiple = shape.row_multiple, experts = shape.experts;
  std::int32_t* const spread = routing.offsets.as<std::int32_t>();
  const std::int32_t* const begins = compact.as<std::int32_t>();
  launch(stream, "route_spread", experts + 1, KOKKOS_LAMBDA(std::int64_t e) {
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < e; ++i) begin += (begins[i + 1] - begins[i] + multiple - 1) / multiple * multiple;
    spread[e] = static_cast<std::int32_t>(begin);
  });
}

// invert() for rows with gaps between experts.
void invert_spread(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& order,
                   const Tensor& compact) {
  const std::int64_t k = shape.top_k;
  const std::int32_t *const slot = order.as<std::int32_t>(), *const expert = routing.expert.as<std::int32_t>();
  const std::int32_t *const begins = compact.as<std::int32_t>(), *const spread = routing.offsets.as<std::int32_t>();
  std::int32_t *const row_of_slot = routing.row_of_slot.as<std::int32_t>();
  std::int32_t *const token_of_row = routing.token_of_row.as<std::int32_t>();
  launch(stream, "route_no_token", shape.rows(), KOKKOS_LAMBDA(std::int64_t row) { token_of_row[row] = -1; });
  launch(stream, "route_invert", shape.slots(), KOKKOS_LAMBDA(std::int64_t i) {
    const std::int32_t s = slot[i], e = expert[s], row = spread[e] + static_cast<std::int32_t>(i) - begins[e];
    row_of_slot[s] = row;
    token_of_row[row] = static_cast<std::int32_t>(s / k);
  });
}

void invert(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& order) {
  const std::int64_t k = shape.top_k;
  const std::int32_t* const slot = order.as<std::int32_t>();
  std::int32_t *const row_of_slot = routing.row_of_slot.as<std::int32_t>();
  std::int32_t *const token_of_row = routing.token_of_row.as<std::int32_t>();
  launch(stream, "route_invert", shape.slots(), KOKKOS_LAMBDA(std::int64_t row) {
    row_of_slot[slot[row]] = static_cast<std::int32_t>(row);
    token_of_row[row] = static_cast<std::int32_t>(slot[row] / k);
  });
}

void count_load(Stream& stream, const RouterShape& shape, const Routing& routing) {
  const std::int64_t experts = shape.experts, slots = shape.length * shape.top_k;
  const std::int32_t* const expert = routing.expert.as<std::int32_t>();
  std::int32_t* const load = routing.load.as<std::int32_t>();
  launch_rows(stream, "route_load", shape.sequences * experts, KOKKOS_LAMBDA(const Row& row, std::int64_t i) {
    const std::int32_t e = static_cast<std::int32_t>(i % experts), *const chosen = expert + i / experts * slots;
    const std::int32_t count =
        row.sum<std::int32_t>(slots, [=](std::int64_t s) { return static_cast<std::int32_t>(chosen[s] == e); });
    row.once([=] { load[i] = count; });
  });
}

// For every sequence: E sum_e f_e P_e, and the sum of log_sum^2.
template <class A>
void sequence_losses(Stream& stream, const RouterShape& shape, const Routing& routing, double* balance, double* z) {
  const std::int64_t experts = shape.experts, length = shape.length;
  // E f_e P_e = E (load / (T k)) (sum p / T).
  const double slots = static_cast<double>(length * shape.top_k);
  const double share = static_cast<double>(experts) / slots / static_cast<double>(length);
  const A *const probabilities = routing.probabilities.as<A>(), *const log_sum = routing.log_sum.as<A>();
  const std::int32_t* const load = routing.load.as<std::int32_t>();
  launch_rows(stream, "auxiliary_losses", shape.sequences, KOKKOS_LAMBDA(const Row& row, std::int64_t b) {
    double total = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      const A* const p = probabilities + b * length * experts + e;
      total += load[b * experts + e] *
               row.sum<double>(length, [=](std::int64_t t) { return static_cast<double>(p[t * experts]); });
    }
    const A* const lse = log_sum + b * length;
    const double squares = row.sum<double>(length, [=](std::int64_t t) { return double(lse[t]) * double(lse[t]); });
    row.once([=] {
      balance[b] = share * total;
      z[b] = squares;
    });
  });
}

void add_sequences(Stream& stream, double* sum, const double* parts, std::int64_t sequences) {
  if (sum == nullptr) return;
  launch_rows(stream, "auxiliary_sum", 1, KOKKOS_LAMBDA(const Row& row, std::int64_t) {
    const double total = row.sum<double>(sequences, [=](std::int64_t b) { return parts[b]; });
    row.once([=] { *sum += total; });
  });
}

template <class A>
void backward(Stream& stream, const RouterShape& shape, const Tensor& dlogits, const Tensor& dweight,
              const Routing& routing, double balance_scale, double z_scale) {
  const std::int64_t experts = shape.experts, length = shape.length, k = shape.top_k;
  const bool renormalize = shape.renormalize;
  // d balance / d p_e = E f_e / T with f_e = load / (T k), the same for all tokens of a sequence.
  const double per_token = balance_scale * static_cast<double>(experts) / static_cast<double>(length);
  const A slope = A(per_token / static_cast<double>(length * k)), z_slope = A(2 * z_scale);
  const A *const probabilities = routing.probabilities.as<A>(), *const log_sum = routing.log_sum.as<A>();
  const A *const weights = routing.weight.as<A>(), *const dweights = dweight.as<A>();
  const std::int32_t *const expert = routing.expert.as<std::int32_t>(), *const loads = routing.load.as<std::int32_t>();
  A* const out = dlogits.as<A>();
  launch(stream, "route_backward", shape.tokens(), KOKKOS_LAMBDA(std::int64_t m) {
    const A *const p = probabilities + m * experts, *const w = weights + m * k, *const dw = dweights + m * k;
    const std::int32_t* const load = loads + m / length * experts;
    A along = 0, balance = 0;
    for (std::int64_t j = 0; j < k; ++j) along += dw[j] * w[j];
    for (std::int64_t e = 0; e < experts; ++e) balance += p[e] * (slope * A(load[e]));
    // Renormalised weights are a softmax over the chosen experts alone, so dweight has no part in the other experts'
    // gradients.
    const A all = z_slope * log_sum[m] - balance - (renormalize ? A(0) : along);
    for (std::int64_t e = 0; e < experts; ++e) out[m * experts + e] = p[e] * (slope * A(load[e]) + all);
    for (std::int64_t j = 0; j < k; ++j)
      out[m * experts + expert[m * k + j]] += w[j] * (dw[j] - (renormalize ? along : A(0)));
  });
}

void check(const char* kernel, const RouterShape& s, const Routing& r) {
  const std::int64_t tokens = s.tokens();
  require(s.experts > 0 && s.top_k > 0 && s.top_k <= s.experts, kernel, "1 <= top_k <= experts");
  require(r.probabilities.elements() == tokens * s.experts && r.log_sum.elements() == tokens, kernel,
          "probabilities are [M,E], log_sum [M]");
  require(r.expert.elements() == s.slots() && r.weight.elements() == s.slots(), kernel, "expert and weight are [M,k]");
  require(r.load.elements() == s.sequences * s.experts, kernel, "load is [sequences,E]");
}

template <class F> void dispatch_statistic(DType type, const char* kernel, const F& f) {
  require(type == DType::f32 || type == DType::f64, kernel, "router values are f32 or f64");
  if (type == DType::f32) f.template operator()<float>();
  else f.template operator()<double>();
}

}  // namespace

void route(Stream& stream, Arena& arena, const RouterShape& shape, const Routing& routing, const Tensor& logits) {
  check("route", shape, routing);
  require(logits.elements() == shape.tokens() * shape.experts, "route", "logits are [M,E]");
  require(routing.offsets.elements() == shape.experts + 1 && routing.row_of_slot.elements() == shape.slots() &&
              routing.token_of_row.elements() == shape.rows(),
          "route", "offsets are [E+1], row_of_slot [M,k], token_of_row [S]");
  dispatch_statistic(logits.type, "route", [&]<class A>() { choose_experts<A>(stream, shape, routing, logits); });
  const Arena::Frame frame(arena);
  const Tensor order = arena.temp(DType::i32, Shape{shape.slots()});
  if (shape.row_multiple == 1) {
    sort_by_key(stream, arena, order, routing.offsets, routing.expert);
    invert(stream, shape, routing, order);
  } else {
    const Tensor compact = arena.temp(DType::i32, routing.offsets.shape);
    sort_by_key(stream, arena, order, compact, routing.expert);
    spread(stream, shape, routing, compact);
    invert_spread(stream, shape, routing, order, compact);
  }
  count_load(stream, shape, routing);
}

void auxiliary_losses(Stream& stream, Arena& arena, const RouterShape& shape, const Routing& routing, double* balance,
                      double* z) {
  check("auxiliary_losses", shape, routing);
  const Arena::Frame frame(arena);
  double* const parts = arena.temp(DType::f64, Shape{2, shape.sequences}).as<double>();
  dispatch_statistic(routing.weight.type, "auxiliary_losses", [&]<class A>() {
    sequence_losses<A>(stream, shape, routing, parts, parts + shape.sequences);
  });
  add_sequences(stream, balance, parts, shape.sequences);
  add_sequences(stream, z, parts + shape.sequences, shape.sequences);
}

void add_busiest_expert(Stream& stream, const RouterShape& shape, const Routing& routing, double* slots) {
  check("add_busiest_expert", shape, routing);
  const std::int64_t sequences = shape.sequences, experts = shape.experts;
  const std::int32_t* const load = routing.load.as<std::int32_t>();
  launch_rows(stream, "busiest_expert", 1, KOKKOS_LAMBDA(const Row& row, std::int64_t) {
    const std::int64_t most = row.max<std::int64_t>(experts, [=](std::int64_t e) {
      std::int64_t own = 0;
      for (std::int64_t b = 0; b < sequences; ++b) own += load[b * experts + e];
      return own;
    });
    row.once([=] { *slots += static_cast<double>(most); });
  });
}

void route_backward(Stream& stream, const RouterShape& shape, const Tensor& dlogits, const Tensor& dweight,
                    const Routing& routing, double balance_scale, double z_scale) {
  check("route_backward", shape, routing);
  require(dlogits.elements() == shape.tokens() * shape.experts && dweight.elements() == shape.slots(), "route_backward",
          "dlogits are [M,E], dweight [M,k]");
  dispatch_statistic(dlogits.type, "route_backward", [&]<class A>() {
    backward<A>(stream, shape, dlogits, dweight, routing, balance_scale, z_scale);
  });
}

}  // namespace tessera
