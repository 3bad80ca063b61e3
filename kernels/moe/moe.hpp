#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/moe/scores.hpp"

namespace tessera {

struct RouterShape {
  std::int64_t sequences = 0, length = 0, experts = 0, top_k = 0;
  bool renormalize = true;
  std::int64_t row_multiple = 1;  ///< each expert's rows begin at a multiple of this
  ScoreRule rule = {};
  /// Slots of each sequence that an expert takes, those of its first tokens; the others are dropped. 0: all.
  std::int64_t capacity = 0;
  std::int64_t tokens() const { return sequences * length; }
  std::int64_t slots() const { return tokens() * top_k; }
  /// Number of rows S that suffices for all slots with any routing.
  std::int64_t rows() const { return (slots() + experts * (row_multiple - 1)) / row_multiple * row_multiple; }
};

/// Routing of M tokens to experts: M k slots, a slot being one of a token's k experts, in S = RouterShape::rows() rows
/// sorted by expert (the permuted order). All on the device; the host does not read it.
struct Routing {
  Tensor scores;         ///< [M,E] fp32 (fp64): softmax or sigmoid of the router logits
  Tensor log_sum;        ///< [M] fp32 (fp64): logsumexp of the logits
  Tensor expert;         ///< [M,k] i32, the k of highest score plus bias (ties: lower index), the highest first
  Tensor weight;         ///< [M,k] fp32 (fp64): their scores, renormalised if the shape says so, times the scale
  Tensor offsets;        ///< [E+1] i32: rows of expert e are [offsets[e], offsets[e+1]), gaps included
  Tensor row_of_slot;    ///< [M,k] i32: row of slot (m, j); -1: the slot was dropped
  Tensor token_of_row;   ///< [S] i32: token m of a row; -1: a gap, which belongs to no token
  Tensor load;           ///< [sequences,E] i32: slots of each sequence by expert, dropped ones too
  Tensor total;          ///< [M] fp32 (fp64): sum of a token's scores; of sigmoids only
  Tensor logits;         ///< [M,E] fp32 (fp64): the logits; of sigmoids with a z-loss only, which needs their softmax
  bool drops = false;    ///< whether slots may be dropped, so that there are gaps even if S is M k
};

/// What decides a routing besides logits and bias. Empty tensors decide nothing.
struct RouteGiven {
  Tensor choices = {};  ///< [M,k] i32: the experts to take instead of those of highest score, each of a token once
  /// [E] i32: slots of the one sequence before its M tokens, to which route() adds theirs; with a capacity alone.
  Tensor taken = {};
};

/// Shape of the rows that arrive at one rank of an expert group, whose ranks hold equal shares of all experts.
struct ArrivalShape {
  std::int64_t ranks = 1, place = 0;  ///< ranks of the group, and this rank's number in it
  std::int64_t experts = 0;           ///< experts of all ranks
  std::int64_t row_multiple = 1;      ///< each expert's rows begin at a multiple of this
  std::int64_t share = 0;             ///< rows that each rank sends, and receives with even routing
  std::int64_t room = 0;              ///< largest number of rows that a rank can receive
  std::int64_t held() const { return experts / ranks; }
  /// Number of rows of the experts' products, gaps included, that suffices for `arriving` rows with any routing. It is
  /// at least row_multiple, so that no product is empty.
  std::int64_t rows(std::int64_t arriving) const {
    const std::int64_t spread = (arriving + held() * (row_multiple - 1)) / row_multiple * row_multiple;
    return spread > row_multiple ? spread : row_multiple;
  }
};

/// Statistics of arriving rows over the layers of a step.
struct DispatchStats {
  double most = 0;            ///< rows for this rank / its share, refused ones included: the largest of any layer
  std::uint64_t refused = 0;  ///< 1 if a rank of the group had no room for a layer's rows
};

/// Routes tokens by their logits [M,E] fp32 (fp64): fills `routing`, but for routing.logits, which are `logits` if they
/// are kept. `bias` [E], of the logits' type (empty: zero), is added to the scores for the choice of experts alone.
/// Rows of an expert are in ascending token order. offsets[e] are multiples of shape.row_multiple. A NaN logit makes
/// its token's weights NaN (of sigmoids: its expert's) but still gives valid experts. Given equal logits, all back ends
/// give equal bits. Space for sorting is from arena.temp(), released on return. With a capacity, which routing.drops
/// must say, dropped slots have no row; weights are what they are without. Orders on `stream`. Local. Source of groups,
/// sigmoids and bias: DeepSeek-V3 (Liu 2024).
void route(Stream& stream, Arena& arena, const RouterShape& shape, const Routing& routing, const Tensor& logits,
           const Tensor& bias = {}, const RouteGiven& given = {});

/// Sums of the auxiliary losses over the micro-batch: *balance += sum over sequences of E sum_e f_e P_e. P_e is the
/// mean over tokens of an expert's score divided by the token's sum of scores. Further *z += sum over tokens of
/// log_sum^2 (doubles on the device, either may be null). Summed in double in a fixed order, whatever the number of
/// threads; one value a sequence from `arena`.temp(), given back on return. f_e is the expert's share of the sequence's
/// slots, or of all that `counted` [E] fp32 (fp64) holds, if that is not empty: 0 where it holds none.
void auxiliary_losses(Stream& stream, Arena& arena, const RouterShape& shape, const Routing& routing, double* balance,
                      double* z, const Tensor& counted = {});

/// n [E] fp32 (fp64) = n.beta n + each expert's slots of the micro-batch: exact below 2^24, in any order.
void add_load(Stream& stream, const Gradient& n, const RouterShape& shape, const Routing& routing);

/// *slots (a double on the device) += number of slots of the micro-batch's busiest expert.
void add_busiest_expert(Stream& stream, const RouterShape& shape, const Routing& routing, double* slots);

/// What is recorded of a layer's routing in a step: sums of integers, which add up over micro-batches and ranks in any
/// order. As words (i64 [RoutingRecord::words(E)]): the load, then the rest.
struct RoutingRecord {
  static constexpr double entropy_unit = 1.0 / (1 << 20);  ///< nats

  static constexpr std::int64_t words(std::int64_t experts) { return experts + 4; }
  static constexpr std::int64_t entropy(std::int64_t experts) { return experts; }
  static constexpr std::int64_t choices(std::int64_t experts) { return experts + 1; }
  static constexpr std::int64_t dropped(std::int64_t experts) { return experts + 2; }  ///< slots
  static constexpr std::int64_t differ(std::int64_t experts) { return experts + 3; }   ///< slots
};

/// Adds a micro-batch's routing to `words`: each expert's slots, the entropy, and the digest of the chosen experts. The
/// entropy is that of a token's scores divided by their sum. It is summed over tokens, each term rounded to the unit.
/// The digest numbers slots in the global batch, of which `first_token` is the micro-batch's first token. Given equal
/// scores, all back ends give equal integers. Orders on `stream`. Local.
void record_routing(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& words,
                    std::int64_t first_token);
/// Adds to *differ (i64 on the device) the slots of given choices that scores and `bias` [E] (empty: zero) would not
/// have chosen for their token. Orders on `stream`. Local.
void count_differing(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& bias,
                     std::int64_t* differ);

/// Permutes tokens into rows: x_rows [S,C] = x [M,C] gathered by token_of_row; zero in gaps. Any type.
void permute_forward(Stream& stream, const Tensor& x_rows, const Tensor& x, const Routing& routing);
/// dx [M,C] = `first` [M,C] (empty: 0; may be dx) + sum over the token's k rows in ascending expert order, in fp32,
/// rounded once.
void permute_backward(Stream& stream, const Tensor& dx, const Tensor& dx_rows, const Routing& routing,
                      const Tensor& first = {});

/// Combines rows into tokens: y [M,C] = sum over the token's slots of weight * row, experts ascending, + `last` [M,C]
/// (empty: 0; may be y), in fp32, rounded once.
void combine_forward(Stream& stream, const Tensor& y, const Tensor& y_rows, const Routing& routing,
                     const Tensor& last = {});
/// dy_rows [S,C] = weight * dy, zero in gaps; dweight [M,k] fp32 (fp64) = <dy, row>. dy_rows may be y_rows, or empty:
/// then dweight is all.
void combine_backward(Stream& stream, const Tensor& dy_rows, const Tensor& dweight, const Tensor& dy,
                      const Tensor& y_rows, const Routing& routing);

/// counts [E] i32 = offsets[e+1] - offsets[e]: the rows of each expert, gaps included.
void count_rows(Stream& stream, const Tensor& counts, const Routing& routing);
/// Routes the n rows that arrive at rank shape.place to its experts, from counts [ranks, E] i32 of all ranks. Fills
/// `arrival` as a routing with one slot a token, whose token m is the m-th arriving row: offsets [held + 1],
/// row_of_slot [n,1], token_of_row [S]. Rows arrive sorted by source rank, then by expert; an expert's rows are sorted
/// by source rank. If any rank would receive more than shape.room rows, no rows arrive on any rank. Updates *arrivals
/// (on the device; may be null) by a maximum and a flag, so that recomputation of a layer does not count twice. Without
/// row_of_slot the host need not know n, and S may be larger than it takes.
void arrive(Stream& stream, const ArrivalShape& shape, const Routing& arrival, const Tensor& counts,
            DispatchStats* arrivals);

/// Zeroes rows [S,C] from row offsets[E] on, behind the last expert's.
void clear_rows_behind(Stream& stream, const Tensor& rows, const Routing& routing);
/// numbers (i64 [S]) = canonical number of each row: (first_token + m) k + j for slot (m, j); 0 in gaps.
void number_rows(Stream& stream, const Tensor& numbers, const Routing& routing, std::int64_t first_token);

/// y [M,C] = sigmoid(logits [M]) * answer [M,C], in fp32, rounded once; y may be answer. logits: fp32 (fp64).
void gate_forward(Stream& stream, const Tensor& y, const Tensor& answer, const Tensor& logits);
/// danswer [M,C] = sigmoid(logits [M]) * dy [M,C], rounded once; dlogits [M] = s (1 - s) <dy, answer [M,C]>.
struct GateBackward {
  Tensor danswer = {}, dlogits = {}, dy = {}, answer = {}, logits = {};
};
void gate_backward(Stream& stream, const GateBackward& args);

/// dlogits [M,E] from dweight and both auxiliary losses. `balance_scale` and `z_scale` hold the coefficient times the
/// scale of the loss: d/dlogits of balance_scale * sum_seq E sum f P + z_scale * sum_tokens lse^2, f constant, of
/// `counted` as in auxiliary_losses().
void route_backward(Stream& stream, const RouterShape& shape, const Tensor& dlogits, const Tensor& dweight,
                    const Routing& routing, double balance_scale, double z_scale, const Tensor& counted = {});

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
