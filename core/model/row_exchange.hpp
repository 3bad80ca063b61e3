#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/device/device.hpp"
#include "kernels/moe/moe.hpp"

namespace tessera {

/// Number of rows of one layer that this rank sends to each rank of its expert group, and receives from each.
struct DispatchCounts {
  std::vector<std::int64_t> sent, received;  ///< by rank of the group
  std::int64_t arriving = 0;                 ///< sum of `received`
  std::int64_t rows = 0;                     ///< rows of this rank's expert products, gaps between experts included
};

/// This rank's part of the counts [ranks, experts] of an expert group. If any rank of the group would receive more rows
/// than shape.room, all counts are 0: nothing is sent. All ranks of the group decide alike.
DispatchCounts row_counts(const ArrivalShape& shape, std::span<const std::int32_t> counts);

/// Number of arriving rows that a dry pass assumes: as many as there is room for, or this rank's even share.
enum class DryRows { most, even };

/// Dispatch and combine of expert parallelism: sends rows of tokens to the ranks of their experts and back, within an
/// expert group. One a rank, shared by all layers. Collective over the expert group, but for the constructor.
class RowExchange {
 public:
  /// `experts` of each layer are divided among the ranks of `group`. Local.
  RowExchange(Device& device, Communicator& group, std::int64_t experts, DryRows dry = DryRows::most);

  /// From now on rows move by kernels in `memory`, that of the arena in which layers place them, and counts stay on the
  /// device. Throws Error{environment} on all ranks of the group if they cannot reach each other's. Allocates.
  void reach(const SharedMemory& memory);
  /// Whether the host waits for the counts of every layer.
  bool waits() const { return !counts_; }

  /// All-gathers `counts` (i32 [ranks, experts] on the device), of which this rank has written its row, and copies them
  /// to the host. The event is the copy's end. Orders on `stream`.
  Event gather(Stream& stream, const ArrivalShape& shape, const Tensor& counts);
  /// The row counts from gather(). The host waits for its event; work enqueued since then keeps the device busy
  /// meanwhile. Local.
  DispatchCounts gathered(Stream& stream, const ArrivalShape& shape, const Event& copied);

  /// Rows to exchange: `from` is sorted by the rank that rows go to, `to` by the rank that they come from.
  struct Move {
    Tensor to, from;
  };
  /// Dispatch: sends rows to the ranks of their experts. combine() returns them. The moves of one call
  /// travel as one operation named `label`, which must have finished before the next call.
  Pending dispatch(Stream& stream, const DispatchCounts& counts, std::span<const Move> moves, const char* label);
  Pending combine(Stream& stream, const DispatchCounts& counts, const Move& move, const char* label);

  /// With reach(): of all ranks, i32 [ranks, experts] on the device. This rank writes its row, gather() the others.
  const Tensor& counts() const { return counts_; }
  void gather(Stream& stream, const ArrivalShape& shape);
  /// PeerRows::distances of tensors in the reached memory.
  const Tensor& distances() const { return distances_; }
  /// Moves rows by `kernels`, in tensors that all ranks have at the same place of the reached memory; as dispatch().
  Pending move(Stream& stream, const ArrivalShape& shape, std::span<const Tensor> rows, const char* label,
               const std::function<void(Stream&)>& kernels);

 private:
  /// Counts and displacements of one tensor of rows, in elements.
  struct Cut {
    Cut(std::int64_t columns, const std::vector<std::int64_t>& sent, const std::vector<std::int64_t>& received);
    std::vector<std::int64_t> counts, begins, arrivals;
  };

  Pending exchange(Stream& stream, std::span<const Move> moves, const std::vector<std::int64_t>& sent,
                   const std::vector<std::int64_t>& received, const char* label);

  Device& device_;
  Communicator& group_;
  DryRows dry_;
  std::span<std::byte> pinned_;                        ///< page-locked memory of the counts
  std::vector<std::int64_t> row_counts_, row_begins_;  ///< counts and displacements of the all-gather of counts
  Tensor counts_, distances_;                          ///< empty without reach()
  Exchange all_counts_;
  std::byte* reached_ = nullptr;                       ///< this rank's memory
  std::vector<Cut> cuts_;                              ///< of the exchange under way, which reads them until it ends
};

}  // namespace tessera
