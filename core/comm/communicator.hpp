#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/stream.hpp"

namespace tessera {

struct SharedMemory;

enum class Collective : std::uint8_t {
  all_gather, all_to_all, exchange_rows, pass_on, all_reduce_max, all_reduce_sum
};
constexpr const char* name_of(Collective c) {
  constexpr const char* names[] = {"all_gather",     "all_to_all",     "exchange_rows", "pass_on",
                                   "all_reduce_max", "all_reduce_sum"};
  return names[static_cast<int>(c)];
}

/// One buffer of a coalesced collective. Counts and displacements are in elements of the tensors' type, one entry a
/// rank, and must stay valid until the Pending has finished. Part r of a buffer is [displacements[r],
/// displacements[r] + counts[r]).
///  all_gather: `receive` is the whole buffer. On each rank r either part r is in place already and `send` is empty, or
///  `send` holds it, of the same type; all ranks do the same.
///  all_to_all: part r of `send` goes to rank r, but for a rank's own; `receive` is [size - 1, counts[rank]], the parts
///  of the other ranks in their order.
///  exchange_rows: an all-to-all whose counts are data and differ for each pair of ranks. Part r of `send` goes to rank
///  r; `receive` begins with arrivals[r] elements of each rank r, packed in rank order, and its rest is left as it is.
///  Both ranks of a pair must give the same count; the log's fingerprints leave it out.
///  pass_on: along the line of ranks. `send` goes to rank + 1, `receive` comes from rank - 1, each unless it is empty;
///  counts unused. The n-th sent is the n-th received. What a rank passes on may follow from what it has received, so
///  that the two are operations of their own. The first rank receives nothing, and the last sends nothing.
///  all_reduce_*: `receive` in place; counts unused. A sum takes i64 or u64 (exact in any order); a maximum takes i64,
///  u64, or u16 that holds the bits of bf16 numbers from 0 to infinity.
struct Exchange {
  Tensor send;
  Tensor receive;
  std::span<const std::int64_t> counts;
  std::span<const std::int64_t> displacements;
  std::span<const std::int64_t> arrivals = {};  ///< elements received from each rank; exchange_rows alone
  /// Addresses of every rank's `receive` in this process, filled in by Communicator::open(); empty: not opened.
  std::span<std::byte* const> peers = {};
};

/// Kernels that move rows of an exchange_rows themselves, in memory that ranks have reached. `enqueue` puts them on the
/// stream that it is given.
struct DirectMove {
  std::function<void(Stream&)> enqueue;
  std::int64_t place = 0;  ///< of the rows in the reached memory, in bytes, which is to be the same on all ranks
};

/// One collective as `submit` sees it; `group` (a bucket group or -1) and `label` name it in records and errors.
struct Operation {
  Collective collective = Collective::all_gather;
  std::span<const Exchange> exchanges;
  int group = -1;
  const char* label = "";
  /// Of an exchange_rows, if not null: moves the rows, in place of the back end. It begins when all ranks of the group
  /// have submitted and their streams have come so far. The Pending ends when the moves of all ranks have ended.
  /// `exchanges` say what it moves on average; their tensors are not touched. submit() has called it when it returns.
  const DirectMove* direct = nullptr;
  /// Bytes that this rank receives from the others. An all_reduce counts as its result, once.
  std::int64_t bytes(int rank, int size) const;
  /// Throws Error{internal} when counts, shapes or types are not as Exchange says. Every back end calls it first.
  void check(int rank, int size) const;
};

class Communicator;
class CollectiveLog;

/// Handle of a non-blocking collective. Move-only. wait() orders `stream` behind the operation and empties the handle
/// (waiting twice is Error{internal}). The destructor of a handle that was not waited for blocks until the operation
/// has ended. The communicator must outlive it.
class Pending {
 public:
  Pending() = default;
  Pending(Communicator* owner, int slot) : owner_(owner), slot_(slot) {}
  Pending(Pending&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), slot_(other.slot_) {}
  Pending& operator=(Pending&& other) noexcept;
  ~Pending();

  explicit operator bool() const { return owner_ != nullptr; }
  void wait(Stream& stream);

 private:
  Communicator* owner_ = nullptr;
  int slot_ = -1;
};

/// Data collectives of one process group. Every call is collective: all ranks of the group call the same operations in
/// the same order. Buffers belong to the caller and must live, untouched, until wait(). A failure of the transport
/// (time-out, disagreement) ends the program with Exit::communication on every rank; see Control::leave.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  ///< back end, wrappers outermost: "recording(mpi)"

  /// Announces the exchanges of an all_gather or all_to_all that will be submitted again and again, copies of them
  /// included. A back end whose ranks can write to each other's memory fills in Exchange::peers, and then moves them by
  /// copy engines. Same bits. The communicator must not outlive their memory. Collective over this group.
  virtual void open(std::span<Exchange* const> /*exchanges*/) {}

  /// Addresses of every rank's `memory` in this process, for DirectMove; nothing, on all ranks, if a rank cannot reach
  /// another's. As many bytes on each rank, which it may overwrite. The communicator must not outlive the memory.
  /// Waits. Collective over this group.
  virtual std::vector<std::byte*> reach(const SharedMemory& /*memory*/) { return {}; }

  /// Begins an operation behind the work that `stream` holds so far. Collective over this group.
  virtual Pending submit(Stream& stream, const Operation& operation) = 0;

  /// Log of the operations submitted so far, for comparison over Control; null where there is nobody to disagree with
  /// (one rank, planning).
  virtual const CollectiveLog* log() const { return nullptr; }
  /// Seconds so far in which an operation was under way, by the host's clock; 0 where operations run on a GPU's stream.
  /// The seconds among them that the host spent in RegionName::waiting were exposed: not overlapped by computation.
  virtual double busy() const { return 0; }
  /// Whether operations run on streams without the host (NCCL): then they can be captured in a CUDA graph
  /// (Stream::capture) and replayed. An operation that is captured is neither logged nor watched by submit().
  virtual bool on_streams() const { return false; }
  /// To be called when the graph that holds the captured operations has been launched, at every replay. Logs them, and
  /// watches for `end`, which has been recorded behind the graph. For all communicators of a back end at once. Local.
  virtual void replayed(const Event& /*end*/) {}

 protected:
  friend class Pending;
  /// Orders `stream` behind the operation of `slot` and frees the slot.
  virtual void finish(Stream& stream, int slot) = 0;
  /// Blocks the host until the operation of `slot` has ended, and frees the slot. Called from a destructor.
  virtual void abandon(int slot) noexcept = 0;
};

/// The communicator of a run of one rank: every collective is a copy.
std::unique_ptr<Communicator> self_communicator();

/// One finished operation, as the wrappers and the plan record it.
struct Record {
  Collective collective;
  int group;
  std::int64_t buckets;  ///< coalesced buffers
  std::int64_t bytes;    ///< received from other ranks
  std::string_view label = {};
  bool operator==(const Record&) const = default;
};

/// A communicator for planning: stands for rank `rank` of `size` and moves nothing.
std::unique_ptr<Communicator> planning_communicator(int rank, int size);

/// Passes everything to `inner` and appends a Record of each submit to `records`.
std::unique_ptr<Communicator> recording(std::unique_ptr<Communicator> inner, std::vector<Record>& records);

}  // namespace tessera
