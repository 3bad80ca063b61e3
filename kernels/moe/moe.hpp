#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

struct RouterShape {
  std::int64_t sequences = 0, length = 0, experts = 0, top_k = 0;
  bool renormalize = true;
  std::int64_t row_multiple = 1;  ///< at which each expert's rows begin
  std::int64_t tokens() const { return sequences * length; }
  std::int64_t slots() const { return tokens() * top_k; }
  /// Room for all slots however they are dealt.
  std::int64_t rows() const { return (slots() + experts * (row_multiple - 1)) / row_multiple * row_multiple; }
};

/// What routing decides for M tokens and M k slots, in S = RouterShape::rows() rows. Everything stays on the device.
struct Routing {
  Tensor probabilities;  ///< [M,E] fp32 (fp64): softmax of the router logits
  Tensor log_sum;        ///< [M] fp32 (fp64): logsumexp of the logits
  Tensor expert;         ///< [M,k] i32, the k most probable (ties: lower index), most probable first
  Tensor weight;         ///< [M,k] fp32 (fp64), renormalised or the probability itself
  Tensor offsets;        ///< [E+1] i32: rows of expert e in the permuted order
  Tensor row_of_slot;    ///< [M,k] i32: where slot (m, j) stands in the permuted order
  Tensor token_of_row;   ///< [S] i32: its inverse, m; -1: no token's row
  Tensor load;           ///< [sequences,E] i32: slots of each sequence sent to each expert
};

/// Rows that arrive at the experts of one rank of an expert group, whose ranks hold equal shares of all experts.
struct ArrivalShape {
  std::int64_t ranks = 1, place = 0;  ///< of the group, and this rank's number in it
  std::int64_t experts = 0;           ///< of all ranks
  std::int64_t row_multiple = 1;      ///< at which each expert's rows begin
  std::int64_t share = 0;             ///< rows that each rank sends, and gets where all get as many
  std::int64_t room = 0;              ///< most rows that a rank can take
  std::int64_t held() const { return experts / ranks; }
  /// Rows of the experts' products for so many that arrive, however they are dealt; one multiple at least, so that no
  /// product is without rows.
  std::int64_t rows(std::int64_t arriving) const {
    const std::int64_t spread = (arriving + held() * (row_multiple - 1)) / row_multiple * row_multiple;
    return spread > row_multiple ? spread : row_multiple;
  }
};

/// What arrived in the layers of a step.
struct Arrivals {
  double most = 0;            ///< rows at this rank, those that found no room too, over its share: the layer with most
  std::uint64_t refused = 0;  ///< 1 where a rank of the group had no room for a layer's rows
};

/// logits [M,E] fp32 (fp64) -> routing. Rows of an expert stand in ascending token order. A NaN logit makes its token's
/// weights NaN and still gives valid experts. offsets[e] are multiples of shape.row_multiple. Sorting
/// space from `arena`.temp(), given back on return.
void route(Stream& stream, Arena& arena, const RouterShape& shape, const Routing& routing, const Tensor& logits);

/// Sums of the auxiliary losses over the micro-batch: *balance += sum over sequences of E sum_e f_e P_e and
/// *z += sum over tokens of log_sum^2 (doubles on the device, either may be null). Summed in double in a fixed order,
/// whatever the number of threads; one value a sequence from `arena`.temp(), given back on return.
void auxiliary_losses(Stream& stream, Arena& arena, const RouterShape& shape, const Routing& routing, double* balance,
                      double* z);

/// *slots (a double on the device) += those of the micro-batch that went to the expert that got most of them.
void add_busiest_expert(Stream& stream, const RouterShape& shape, const Routing& routing, double* slots);

/// x_rows [S,C] = x [M,C] gathered by token_of_row; zero in rows that are no token's. Of any type.
void permute_forward(Stream& stream, const Tensor& x_rows, const Tensor& x, const Routing& routing);
/// dx [M,C] = sum over the token's k rows in ascending expert order, in fp32, rounded once.
void permute_backward(Stream& stream, const Tensor& dx, const Tensor& dx_rows, const Routing& routing);

/// y [M,C] = sum over the token's slots of weight * row, experts ascending, in fp32, rounded once.
void combine_forward(Stream& stream, const Tensor& y, const Tensor& y_rows, const Routing& routing);
/// dy_rows [S,C] = weight * dy, zero in rows that are no token's; dweight [M,k] fp32 (fp64) = <dy, row>.
/// dy_rows may be y_rows.
void combine_backward(Stream& stream, const Tensor& dy_rows, const Tensor& dweight, const Tensor& dy,
                      const Tensor& y_rows, const Routing& routing);

/// counts [E] i32 = rows of each expert; where they begin at multiples, with the gaps.
void count_rows(Stream& stream, const Tensor& counts, const Routing& routing);
/// counts [ranks, E] i32 -> where the n rows that arrive at rank `place` stand among those of its experts, as a routing
/// whose token m is the m-th row that arrived, with one slot: offsets [held + 1], row_of_slot [n,1], token_of_row [S].
/// They arrive by source and, from each, by expert; an expert's stand by source. Where a rank would get more than
/// shape.room, none arrive at any. Adds what it saw to *arrivals (on the device; may be null): seen twice is seen once.
void arrive(Stream& stream, const ArrivalShape& shape, const Routing& arrival, const Tensor& counts,
            Arrivals* arrivals);

/// rows [S,C] from offsets[E] on = 0.
void clear_rows_behind(Stream& stream, const Tensor& rows, const Routing& routing);
/// numbers (i64 [S]) of each row: (first_token + m) k + j for slot (m, j); 0 in rows that are no token's.
void number_rows(Stream& stream, const Tensor& numbers, const Routing& routing, std::int64_t first_token);

/// dlogits [M,E] from dweight and both auxiliary losses. `balance_scale` and `z_scale` hold the coefficient times the
/// scale of the loss: d/dlogits of balance_scale * sum_seq E sum f P + z_scale * sum_tokens lse^2, f constant.
void route_backward(Stream& stream, const RouterShape& shape, const Tensor& dlogits, const Tensor& dweight,
                    const Routing& routing, double balance_scale, double z_scale);

/// Router logits [M,E] in fp32 (fp64) = x [M,C] w^T, x and w of the compute type; and its two gradients.
void router_forward(Stream& stream, const Tensor& logits, const Tensor& x, const Tensor& w);
/// dx += dlogits w, in fp32, rounded once.
void router_input_gradient(Stream& stream, const Tensor& dx, const Tensor& dlogits, const Tensor& w);
/// dw = beta dw + dlogits^T x, rows in a fixed order. Unfused: the product is rounded to x's type first (the
/// definition of an unfused gradient). Partial sums from `arena`.temp(), given back on return.
enum class Accumulation { fused, unfused };
void router_weight_gradient(Stream& stream, Arena& arena, const Gradient& dw, const Tensor& dlogits, const Tensor& x,
                            Accumulation how);

}  // namespace tessera
