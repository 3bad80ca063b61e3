#pragma once
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "core/comm/control.hpp"

namespace tessera {

/// Where a rank is, as a report names it.
struct Waiting {
  const char* call = "computation before";
  std::uint64_t sequence = 0;
  const char* label = "";
};

/// The one way in which the MPI back end waits, and the way out when a wait fails: every rank hears of it over a
/// communicator used for nothing else, rank 0 says what the ranks were doing, all leave with Exit::communication.
class MpiWatch {
 public:
  /// Collective over `world`.
  explicit MpiWatch(MPI_Comm world);
  ~MpiWatch();
  MpiWatch(const MpiWatch&) = delete;
  MpiWatch& operator=(const MpiWatch&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  ///< among the ranks of this host
  const std::string& host() const { return host_; }

  /// A duplicate of the world that returns errors. Collective.
  MPI_Comm duplicate();
  /// The ranks that call this with the same `group`, in their order; returns errors too. Collective over the world.
  MPI_Comm split(int group);
  /// The log that reports quote from now on; null for none.
  void quote(const CollectiveLog* log) { log_ = log; }
  /// Reports wait no longer than this for ranks that do not answer.
  void limit_grace(std::chrono::seconds timeout) { grace_ = std::min(grace_, timeout); }

  /// How to wait. eager: test and yield; patient: soon also sleep in between, so that whoever is waited for has the
  /// core.
  enum class Manner { eager, patient };
  /// Tests until all requests are done; does not return when that takes longer than `timeout`.
  void wait(std::span<MPI_Request> requests, const Waiting& waiting, std::chrono::seconds timeout,
            Manner manner = Manner::eager);
  /// Does not return unless `code` is MPI_SUCCESS.
  void check(int code, const Waiting& waiting);
  /// Begins a report, for a failure that is not MPI's.
  [[noreturn]] void fail(const std::string& why, const Waiting& waiting) { report(why, waiting); }
  /// What another transport must do before this rank leaves; null for nothing.
  void before_leaving(std::function<void()> action) { before_leaving_ = std::move(action); }
  /// Joins the report of another rank, should one have begun. Cheap.
  void look(const Waiting& waiting);

  /// As Control::leave.
  [[noreturn]] void leave(const std::string& why);
  /// `[r3 host] what`, then MPI_Abort.
  [[noreturn]] void abort(Exit code, const std::string& what);

 private:
  using Clock = std::chrono::steady_clock;
  /// Called on any number of ranks, and brings in the others.
  [[noreturn]] void report(const std::string& why, const Waiting& waiting);
  std::map<int, std::string> hear(const std::string& mine);
  bool done(MPI_Request& request, Clock::time_point deadline);

  MPI_Comm world_, comm_;
  int rank_ = 0, size_ = 1, local_rank_ = 0;
  std::string host_;
  const CollectiveLog* log_ = nullptr;
  std::function<void()> before_leaving_;
  std::chrono::seconds grace_{10};
};

}  // namespace tessera
