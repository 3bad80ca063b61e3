#include "kernels/base/launch.hpp"
#include "kernels/base/math.hpp"
#include "kernels/digest/digest.hpp"
#include "kernels/moe/moe.hpp"

namespace tessera {
namespace {

void add_slots(Stream& stream, const RouterShape& shape, const Routing& routing, std::int64_t* words) {
  const std::int64_t sequences = shape.sequences, experts = shape.experts;
  const std::int32_t* const load = routing.load.as<std::int32_t>();
  launch(stream, "record_load", experts, KOKKOS_LAMBDA(std::int64_t e) {
    std::int64_t own = 0;
    for (std::int64_t b = 0; b < sequences; ++b) own += load[b * experts + e];
    words[e] += own;
  });
}

void add_dropped(Stream& stream, const RouterShape& shape, const Routing& routing, std::int64_t* sum) {
  const std::int64_t slots = shape.length * shape.top_k;
  const std::int32_t* const row_of_slot = routing.row_of_slot.as<std::int32_t>();
  launch_rows(stream, "record_dropped", shape.sequences, KOKKOS_LAMBDA(const Row& row, std::int64_t b) {
    const auto own = row.sum<std::int64_t>(
        slots, [=](std::int64_t s) { return static_cast<std::int64_t>(row_of_slot[b * slots + s] < 0); });
    row.once([&] { Kokkos::atomic_add(sum, own); });
  });
}

// Terms are rounded one by one, so that their sum is exact whatever its order.
template <class A>
void add_entropies(Stream& stream, const RouterShape& shape, const Routing& routing, std::int64_t* sum) {
  const std::int64_t experts = shape.experts;
  const A* const scores = routing.scores.as<A>();
  const A* const totals = shape.rule.scores == Scores::sigmoid ? routing.total.as<A>() : nullptr;
  launch_rows(stream, "record_entropy", shape.tokens(), KOKKOS_LAMBDA(const Row& row, std::int64_t m) {
    const A total = totals ? totals[m] + A(1e-20) : A(1);
    const auto own = row.sum<std::int64_t>(experts, [=](std::int64_t e) {
      const A q = scores[m * experts + e] / total;
      if (!(q > A(0))) return std::int64_t{0};  // NaN too
      const A nats = -(q * log_of(q));
      return static_cast<std::int64_t>(nats * A(1 / RoutingRecord::entropy_unit) + A(0.5));
    });
    row.once([&] { Kokkos::atomic_add(sum, own); });
  });
}

}  // namespace

void record_routing(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& words,
                    std::int64_t first_token) {
  constexpr const char* kernel = "record_routing";
  const std::int64_t experts = shape.experts;
  require(words.type == DType::i64 && words.elements() == RoutingRecord::words(experts), kernel,
          "words are i64 [RoutingRecord::words(E)]");
  require(routing.load.elements() == shape.sequences * experts && routing.expert.elements() == shape.slots() &&
              routing.scores.elements() == shape.tokens() * experts,
          kernel, "load is [sequences,E], expert [M,k], scores [M,E]");
  std::int64_t* const to = words.as<std::int64_t>();
  add_slots(stream, shape, routing, to);
  if (routing.scores.type == DType::f64)
    add_entropies<double>(stream, shape, routing, to + RoutingRecord::entropy(experts));
  else
    add_entropies<float>(stream, shape, routing, to + RoutingRecord::entropy(experts));
  if (routing.drops) add_dropped(stream, shape, routing, to + RoutingRecord::dropped(experts));
  digest(stream, reinterpret_cast<std::uint64_t*>(to + RoutingRecord::choices(experts)), routing.expert,
         static_cast<std::uint64_t>(first_token * shape.top_k));  // mutation: choices_without_their_token
}

}  // namespace tessera
