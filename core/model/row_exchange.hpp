#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/device/device.hpp"
#include "kernels/moe/moe.hpp"

namespace tessera {

/// How many rows of one layer this rank sends to the experts of each rank of its expert group, and gets from each.
struct RowCounts {
  std::vector<std::int64_t> sent, received;  ///< by rank of the group
  std::int64_t arriving = 0;                 ///< in all
  std::int64_t rows = 0;                     ///< of its experts' products, gaps between experts included
};

/// What the counts [ranks, experts] of an expert group come to at one of its ranks. Where a rank would get more than
/// shape.room, nothing is sent at all: every rank of the group sees it alike.
RowCounts row_counts(const ArrivalShape& shape, std::span<const std::int32_t> counts);

/// What a dry pass takes for the rows that arrive: as many as there is room for, or this rank's even share.
enum class DryRows { most, even };

/// Rows of tokens to the ranks of their experts and back, among the ranks of an expert group (dispatch and combine of
/// expert parallelism). One a rank, which all layers use. Collective over the expert group, but for its constructor.
class RowExchange {
 public:
  /// `experts` of each layer, held by the ranks of `group` between them.
  RowExchange(Device& device, Communicator& group, std::int64_t experts, DryRows dry = DryRows::most);

  /// `counts` (i32 [ranks, experts] on the device), of which this rank has written its row, is completed by an
  /// all-gather and copied to the host; the event is the copy's end.
  Event gather(Stream& stream, const ArrivalShape& shape, const Tensor& counts);
  /// What gather() brought. The host waits for it: work enqueued since then keeps the device busy meanwhile. Local.
  RowCounts gathered(Stream& stream, const ArrivalShape& shape, const Event& copied);

  /// Rows `from` (sorted by the rank they go to) become rows `to` (by the rank they come from).
  struct Move {
    Tensor to, from;
  };
  /// To the experts' ranks; back() is the way back. Moves of one call travel as one operation named `label`.
  Pending out(Stream& stream, const RowCounts& counts, std::span<const Move> moves, const char* label);
  Pending back(Stream& stream, const RowCounts& counts, const Move& move, const char* label);

 private:
  Pending exchange(Stream& stream, std::span<const Move> moves, const std::vector<std::int64_t>& sent,
                   const std::vector<std::int64_t>& received, const char* label);

  Device& device_;
  Communicator& group_;
  DryRows dry_;
  std::span<std::byte> pinned_;                        ///< the counts on the host
  std::vector<std::int64_t> row_counts_, row_begins_;  ///< how the counts are gathered
};

}  // namespace tessera
