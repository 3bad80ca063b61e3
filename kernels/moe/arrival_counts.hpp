#pragma once
#include "kernels/base/index.hpp"
#include "kernels/base/platform.hpp"
#include "kernels/moe/moe.hpp"

namespace tessera::moe {

/// A row's shift where some rank of the group has no room: whatever is added to it stays below 0.
inline constexpr std::int32_t no_room = -(1 << 30);

/// Rows that each rank of a group sends to each expert, which decide where a row stands at the rank of its expert. Pure
/// functions of the counts, the same on all ranks, on the host and on a device.
struct ArrivalCounts {
  const std::int32_t* rows;  ///< [ranks, experts]
  ArrivalShape shape;

  TESSERA_FN std::int64_t at(std::int64_t rank, std::int64_t expert) const {
    return rows[rank * shape.experts + expert];
  }
  TESSERA_FN std::int64_t of_expert(std::int64_t expert) const {
    std::int64_t sum = 0;
    for (std::int64_t r = 0; r < shape.ranks; ++r) sum += at(r, expert);
    return sum;
  }
  /// Rows that arrive at a rank.
  TESSERA_FN std::int64_t arriving(std::int64_t place) const {
    const std::int64_t held = shape.experts / shape.ranks;
    std::int64_t sum = 0;
    for (std::int64_t e = place * held; e < (place + 1) * held; ++e) sum += of_expert(e);
    return sum;
  }
  TESSERA_FN bool fit() const {
    for (std::int64_t p = 0; p < shape.ranks; ++p)
      if (arriving(p) > shape.room) return false;
    return true;
  }
  /// Where the rows of the e-th expert from `first` on begin, at the rank whose first expert that is.
  TESSERA_FN std::int64_t offset(std::int64_t first, std::int64_t e) const {
    const std::int64_t multiple = shape.row_multiple;
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < e; ++i) begin += (of_expert(first + i) + multiple - 1) / multiple * multiple;
    return begin;
  }
  /// Rank `source` has its rows sorted by expert, without gaps. Row r of them, which is one for `expert`, is row
  /// r + shift at the expert's rank: behind the rows of that expert from earlier ranks.
  TESSERA_FN std::int64_t shift(std::int64_t source, std::int64_t expert) const {
    const std::int64_t held = shape.experts / shape.ranks;
    std::int64_t stands = offset(expert / held * held, expert % held), before = 0;
    for (std::int64_t r = 0; r < source; ++r) stands += at(r, expert);  // mutation: rows_of_peers_overlap
    for (std::int64_t e = 0; e < expert; ++e) before += at(source, e);
    return stands - before;
  }
};

}  // namespace tessera::moe
