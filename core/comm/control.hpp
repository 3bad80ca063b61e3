#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

/// Votes and small host data of all ranks, over a communicator of its own. Collective over the world unless a function
/// says Local.
class Control {
 public:
  virtual ~Control() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Votes on an error. If any rank has problems, all ranks throw the same Error, with the texts and code of the lowest
  /// failing rank; else all return. No rank may throw between collectives in another way, since the others would wait
  /// for it. The message names that rank, with its host if there are several, unless all have the same problems.
  void agree(const Problems& problems);

  virtual std::int64_t max(std::int64_t value) = 0;
  virtual std::vector<std::string> gather(const std::string& mine) = 0;  ///< every rank's text, on every rank
  virtual std::string broadcast(const std::string& from_root) = 0;
  /// The sum in rank order, ((v0 + v1) + v2) + ...: the same bits on every rank.
  virtual double sum_in_order(double value) = 0;
  virtual void sum(std::uint64_t* values, int n) = 0;

  /// Sets the time-out of all waits from now on, calls of libraries among them. Local, and equal on all ranks.
  virtual void wait_at_most(std::chrono::seconds /*timeout*/) {}

  /// Names the phase (such as a save) that the watchdog's reports quote from now on; empty: none. Local.
  void about(std::string what) { about_ = std::move(what); }

  /// A watchdog over a call of a library that blocks in MPI (HDF5, MPI-IO): while this lives, the time-out of Control's
  /// own waits holds for it too. Local.
  class LibraryCall {
   public:
    /// `what` must stay valid. `control` null: nothing is watched, since a single process waits for nobody.
    LibraryCall(Control* control, const char* what) : control_(control) {
      if (control_) control_->begin_library_call(what);
    }
    ~LibraryCall() {
      if (control_) control_->end_library_call();
    }
    LibraryCall(const LibraryCall&) = delete;
    LibraryCall& operator=(const LibraryCall&) = delete;

   private:
    Control* control_;
  };

  /// Ends the run with Exit::communication: rank 0 prints `why`, then every rank leaves. None unwinds, because buffers
  /// of collectives that can no longer finish must not be freed.
  [[noreturn]] virtual void leave(const std::string& why) = 0;

  /// Pointer to the MPI_Comm of this Control, for mpi_handle.hpp alone; null without MPI. Local.
  virtual const void* native() const { return nullptr; }

 protected:
  virtual void begin_library_call(const char* /*what*/) {}
  virtual void end_library_call() {}

  std::string about_;
};

/// Chains the fingerprints of a rank's data collectives in all its process groups into one 64-bit hash, and keeps the
/// last 16 for a report. A fingerprint is of sequence, op, type, counts, bucket group, process group and label. The
/// counts of exchange_rows are data and stay out of it. Operations of a CUDA graph are kept, and noted whenever the
/// graph runs. note() and repeat() allocate nothing. Local, but for compare().
class CollectiveLog {
 public:
  static constexpr std::size_t kept = 16;

  /// `processes` names the process group, empty for the world; it must live as long as this. `alike`: whether all
  /// groups of that name move equal counts; else counts stay out of the fingerprint.
  void note(const Operation& operation, const char* processes = "", bool alike = true);
  /// Keeps an operation that is being captured, for repeat().
  void keep(const Operation& operation, const char* processes = "", bool alike = true);
  /// Notes all that was kept, in order: the graph that holds it has been launched.
  void repeat();
  std::uint64_t chain() const { return chain_; }
  std::uint64_t noted() const { return noted_; }
  /// The last records, oldest first, a line each:
  /// "#12 all_gather 3 x u8, 4096 elements (cut 5fa30c12), group 2 of expert-data, weights".
  std::string tail() const;
  /// Compares the logs of all ranks: returns if they are equal, else calls control.leave() with the first difference.
  /// Collective over the world.
  void compare(Control& control) const;

 private:
  struct Entry {
    std::uint64_t sequence;
    std::uint64_t cut;  ///< hash of all counts
    std::int64_t elements, buckets;
    Collective collective;
    DType type;
    int group;
    const char* processes;
    std::array<char, 32> label;
  };

  static Entry entry_of(const Operation& operation, const char* processes, bool alike);
  void append(const Entry& entry);

  std::uint64_t chain_ = 0;
  std::uint64_t noted_ = 0;
  std::vector<Entry> kept_for_replays_;  ///< without their sequence numbers
  std::array<Entry, kept> last_{};
};

/// Describes the first collective in which the tails (rank -> CollectiveLog::tail()) differ, and which ranks called
/// what. Empty if the tails agree on every sequence number that they share.
std::string first_difference(const std::map<int, std::string>& tails);

}  // namespace tessera
