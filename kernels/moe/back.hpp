#pragma once
#include <bit>

#include "kernels/base/math.hpp"
#include "kernels/moe/moe.hpp"

/// Pieces that the back ends share, and a back end's faster versions of the portable kernels in route.cpp,
/// permute.cpp and router.cpp, with arguments already checked. They return false, with nothing done, if there is none.
namespace tessera::moe {

/// The order in which experts are chosen, as integers: NaN lowest, then experts that may not be chosen, then all others
/// by their value.
template <class A> struct Rank;
template <> struct Rank<float> { using Key = std::uint32_t; };
template <> struct Rank<double> { using Key = std::uint64_t; };
template <class A> using RankKey = typename Rank<A>::Key;
template <class A> TESSERA_FN constexpr RankKey<A> nan_key() { return 0; }
template <class A> TESSERA_FN constexpr RankKey<A> masked_key() { return 1; }

template <class A>
TESSERA_FN inline RankKey<A> key_of(A value) {
  using Key = RankKey<A>;
  constexpr Key sign = Key(1) << (8 * sizeof(Key) - 1);
  const Key bits = std::bit_cast<Key>(value + A(0));  // -0 becomes 0, its equal
  const Key ordered = (bits & sign) != 0 ? Key(~bits) : Key(bits | sign);
  return value == value ? ordered : nan_key<A>();
}

/// Division by a sum of scores that may be zero. No score that is not denormal is changed by it.
template <class A> TESSERA_FN constexpr A least_sum() { return A(1e-20); }

template <class A>
TESSERA_FN inline A sigmoid(A x) {
  return A(1) / (A(1) + exp_of(-x));
}

/// The slot of a token whose row follows row `last`; -1: none does, since dropped slots have no row. Rows are sorted by
/// expert, so this walks through experts upwards.
TESSERA_FN inline std::int64_t slot_after(std::int32_t last, const std::int32_t* rows, std::int64_t k) {
  std::int64_t next = -1;
  for (std::int64_t j = 0; j < k; ++j)
    if (rows[j] > last && (next < 0 || rows[j] < rows[next])) next = j;
  return next;
}

/// Scores, choice and weights of route(), and routing.load; same bits.
bool choose_experts(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& logits,
                    const Tensor& bias);
bool count_load(Stream& stream, const RouterShape& shape, const Routing& routing);

bool gather_rows(Stream& stream, const Tensor& x_rows, const Tensor& x, const Routing& routing);
/// Terms of a token's sum besides its rows: each [M,C], or empty.
struct SlotSum {
  Tensor weights;  ///< [M,k] of the rows; empty: 1
  Tensor first, last;
};
/// y[m] = first[m] + sum over the token's slots of weight times row, experts ascending, + last[m].
bool sum_slots(Stream& stream, const Tensor& y, const Tensor& y_rows, const SlotSum& terms, const Routing& routing);
bool combine_backward(Stream& stream, const Tensor& dy_rows, const Tensor& dweight, const Tensor& dy,
                      const Tensor& y_rows, const Routing& routing);

bool router_forward(Stream& stream, const Tensor& logits, const Tensor& x, const Tensor& w);
bool router_input_gradient(Stream& stream, const Tensor& dx, const Tensor& dlogits, const Tensor& w);
/// Rows whose contributions to the router's weight gradient are summed by one work item.
inline constexpr std::int64_t rows_of_part = 256;
/// partial [ceil(rows / rows_of_part), E, C] = dlogits^T x of each part of the rows, in ascending order.
bool router_weight_partials(Stream& stream, const Tensor& partial, const Tensor& dlogits, const Tensor& x);

}  // namespace tessera::moe
