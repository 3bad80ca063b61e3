#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/moe/moe.hpp"

namespace tessera::reference {

/// Routing on the host, in double. The router's products are linear layers (gemm.hpp).
struct Routed {
  std::vector<double> scores, log_sum, weight;
  std::vector<double> logits;  ///< as the scores were made of them
  std::vector<std::int32_t> expert, offsets, row_of_slot, token_of_row, load;
};
/// `bias` [E], or empty. Dropped slots have row -1; so many rows at the end have no token.
Routed route(const RouterShape& shape, std::span<const double> logits, std::span<const double> bias = {});
/// The experts of a token in the order of choice, from its scores plus bias: those of groups that are left out, and
/// NaN, come last.
std::vector<std::int32_t> ranked(const RouterShape& shape, std::span<const double> choice);

/// The arrival of rows at a rank of an expert group, row by row: offsets, the place of the m-th arriving row, and the
/// inverse.
struct Arrived {
  std::vector<std::int32_t> offsets, row_of_slot, token_of_row;  ///< -1: padding
  DispatchStats seen;
};
Arrived arrive(const ArrivalShape& shape, std::span<const std::int32_t> counts);

struct AuxiliaryLosses {
  double balance = 0, z = 0;
};
/// `counted` [E]: slots of the batch whose shares count, instead of those of each sequence; or empty.
AuxiliaryLosses auxiliary_losses(const RouterShape& shape, const Routed& routed, std::span<const double> counted = {});
/// Slots that go to the expert with most of them.
std::int64_t busiest_expert(const RouterShape& shape, const Routed& routed);

/// d/dlogits of <dweight, weight> + balance_scale balance + z_scale z by the chain rule; loads count as constant.
std::vector<double> route_backward(const RouterShape& shape, const Routed& routed, std::span<const double> dweight,
                                   double balance_scale, double z_scale, std::span<const double> counted = {});

/// Terms [M,C] of a token's sum before and behind those of its slots; empty: 0.
template <class T>
struct SlotTerms {
  std::span<const T> first, last;
};
/// y [M,C] = sum over slots of weight times row, experts ascending, in the accumulator of T, rounded once: bit for bit.
/// An empty `weight` is 1 everywhere.
template <class T>
std::vector<T> sum_slots(const RouterShape& shape, const Routed& routed, std::span<const T> rows,
                         std::span<const Accumulator<T>> weight, std::size_t columns, const SlotTerms<T>& terms = {});

}  // namespace tessera::reference
