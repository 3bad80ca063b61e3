#pragma once
#include <bit>

#include "kernels/base/math.hpp"
#include "kernels/moe/peer_rows.hpp"

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

/// The addresses of slots' rows, which are sorted by expert here.
template <class T>
struct RowsHere {
  T* rows;
  std::int64_t columns;
  const std::int32_t* row_of_slot;
  TESSERA_FN T* at(std::int64_t slot) const { return rows + row_of_slot[slot] * columns; }
};

/// The same at the ranks of their experts; null where there is no room, and for dropped slots.
template <class T>
struct RowsAtPeers {
  T* rows;  ///< this rank's, like which the others' are placed
  std::int64_t columns;
  const std::int32_t *row_of_slot, *expert, *shifts;
  const std::int64_t* distances;
  std::int64_t held;  ///< experts of a rank

  RowsAtPeers(const Tensor& placed, const Routing& routing, const PeerRows& peers)
      : rows(static_cast<T*>(placed.data)),
        columns(placed.columns()),
        row_of_slot(routing.row_of_slot.as<std::int32_t>()),
        expert(routing.expert.as<std::int32_t>()),
        shifts(peers.shifts.as<std::int32_t>()),
        distances(peers.distances.as<std::int64_t>()),
        held(peers.shifts.elements() / peers.distances.elements()) {}

  TESSERA_FN T* at(std::int64_t slot) const {
    const std::int64_t e = expert[slot], row = std::int64_t{row_of_slot[slot]} + shifts[e];
    if (row_of_slot[slot] < 0 || row < 0) return nullptr;
    const auto first = reinterpret_cast<std::intptr_t>(rows) + distances[e / held];
    return reinterpret_cast<T*>(first) + row * columns;
  }
};

bool gather_rows(Stream& stream, const Tensor& x_rows, const Tensor& x, const Routing& routing);
/// send_rows() with these weights [M,k]; empty: 1.
bool send_rows(Stream& stream, const Tensor& rows, const Tensor& x, const Tensor& weights, const Routing& routing,
               const PeerRows& peers);
/// What decides a token's sum besides its rows. Empty tensors decide nothing.
struct SlotSum {
  Tensor weights = {};             ///< [M,k] of the rows; empty: 1
  Tensor first = {}, last = {};    ///< further terms [M,C]
  const PeerRows* peers = nullptr;  ///< where the rows are, if not here
  Tensor kept = {};                ///< [M k,C]: gets the rows, sorted by expert
};
/// y[m] = first[m] + sum over the token's slots of weight times row, experts ascending, + last[m]. Without y, the rows
/// are kept alone.
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
