#pragma once
#include "kernels/moe/moe.hpp"

/// Rows between tokens and experts of other ranks, whose memory this process reaches: dispatch and combine without an
/// exchange. The bits are those of permute_forward(), an exchange sorted by source, and arrive()'s order.
namespace tessera {

/// Where the rows of this rank's slots are at the ranks of their experts. All ranks of the group place their tensors
/// alike: rank r's begins distances[r] bytes behind this rank's.
struct PeerRows {
  Tensor shifts;     ///< [E] i32: a row's number at its expert's rank less its number here; negative sums: no room
  Tensor distances;  ///< [ranks] i64; this rank's is 0
};

/// Fills `shifts` [E] from counts [ranks, E] i32 of all ranks, for rows of rank shape.place that are sorted by expert
/// without gaps. Orders on `stream`, as all do. Local.
void find_shifts(Stream& stream, const ArrivalShape& shape, const Tensor& shifts, const Tensor& counts);

/// Dispatch: the row of each slot = its token's of x [M,C], rounded(weight * x) with routing.weight if `weighted`, at
/// the rank of its expert, in that rank's `rows` [S,C]. Nothing is written where there is no room. Writes memory of
/// other ranks, who must be ready for it and learn when it has ended.
enum class Weighted : bool { no, yes };
void send_rows(Stream& stream, const Tensor& rows, const Tensor& x, const Routing& routing, const PeerRows& peers,
               Weighted weighted);
/// The same of number_rows(): numbers (i64 [S]) at the experts' ranks.
void send_numbers(Stream& stream, const Tensor& numbers, const Routing& routing, const PeerRows& peers,
                  std::int64_t first_token);

/// combine_forward() of rows at the experts' ranks, in those ranks' y_rows [S,C]. Copies each to its own place in
/// `kept` [M k,C], sorted by expert. Without y only that. Where there is no room, rows are 0. Reads memory of other
/// ranks, who must have written it and must leave it until the end.
void fetch_answers(Stream& stream, const Tensor& y, const Tensor& kept, const Tensor& y_rows, const Routing& routing,
                   const PeerRows& peers, const Tensor& last = {});
/// permute_backward() likewise.
void fetch_gradients(Stream& stream, const Tensor& dx, const Tensor& dx_rows, const Routing& routing,
                     const PeerRows& peers, const Tensor& first = {});

/// Zeroes the rows (of any type) that are no token's, behind the last expert's too. With `end` (i32 [1]) those before
/// row *end alone.
void clear_gaps(Stream& stream, const Tensor& rows, const Routing& arrival, const Tensor& end = {});

}  // namespace tessera
