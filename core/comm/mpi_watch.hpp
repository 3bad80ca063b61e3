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
#include <vector>

#include "core/comm/control.hpp"

namespace tessera {

class Peers;

/// What a rank is waiting for, as a report names it.
struct Waiting {
  const char* call = "computation before";
  std::uint64_t sequence = 0;
  const char* label = "";
};

/// The watchdog of the MPI back end: every wait goes through it, with a time-out. If a wait fails, all ranks are told
/// over a communicator kept for that, rank 0 prints what each rank was doing, and all leave with Exit::communication.
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
  const std::string& host() const { return hosts_[static_cast<std::size_t>(rank_)]; }

  /// A duplicate of the world that returns errors. Collective.
  MPI_Comm duplicate();
  /// A communicator of the ranks that give the same `group`; returns errors too. Collective over the world.
  MPI_Comm split(int group);
  /// Sets the log that reports quote from now on; null: none.
  void quote(const CollectiveLog* log) { log_ = log; }
  /// Host of every rank.
  const std::vector<std::string>& hosts() const { return hosts_; }
  bool several_hosts() const { return several_hosts_; }

  /// Sets the time-out of all waits from now on, those of every mesh and Control among them. Reports wait no longer
  /// than this for ranks that do not answer.
  void wait_at_most(std::chrono::seconds timeout) {
    timeout_ = timeout;
    grace_ = std::min(grace_, timeout);
  }
  std::chrono::seconds timeout() const { return timeout_; }

  /// How to wait. eager: test and yield. patient: after about a millisecond, sleep between tests, so that a rank on the
  /// same core can run.
  enum class Manner { eager, patient };
  /// Tests until all requests are done; does not return when that takes longer than timeout().
  void wait(std::span<MPI_Request> requests, const Waiting& waiting, Manner manner = Manner::eager);
  /// Begins a report unless `code` is MPI_SUCCESS; then it does not return.
  void check(int code, const Waiting& waiting);
  /// Begins a report of a wait that has lasted longer than `timeout`.
  [[noreturn]] void overdue(const Waiting& waiting, std::chrono::seconds timeout) {
    report(waited(waiting, timeout), waiting);
  }
  /// "rank 1 has waited 300 s in control max #12, a checkpoint's structure".
  std::string waited(const Waiting& waiting, std::chrono::seconds timeout) const;
  /// Begins a report of a failure outside MPI (NCCL).
  [[noreturn]] void fail(const std::string& why, const Waiting& waiting) { report(why, waiting); }
  /// An action of another transport (NCCL's abort) to run before this rank leaves; null: none.
  void before_leaving(std::function<void()> action) { before_leaving_ = std::move(action); }
  /// Tells these of an end that this rank begins; null: none. They outlive this object.
  void with(Peers* peers) { peers_ = peers; }
  /// Tells them that this rank ends, for a reason that it has printed.
  void tell(Exit code) const;
  /// Polls for a report that another rank has begun, and joins it: then does not return. Costs one MPI_Iprobe. Local.
  void check(const Waiting& waiting);

  /// Waits for all ranks, at the end of the run. Collective over the world.
  void meet();

  /// Does what Control::leave() does.
  [[noreturn]] void leave(const std::string& why);
  /// `[r3 host] what`, then MPI_Abort.
  [[noreturn]] void abort(Exit code, const std::string& what);

 private:
  using Clock = std::chrono::steady_clock;
  /// Reports and leaves. Any rank may begin it; the others join at their next check().
  [[noreturn]] void report(const std::string& why, const Waiting& waiting);
  [[noreturn]] void end_all(Exit code);
  std::map<int, std::string> collect(const std::string& mine);
  std::string summary(const std::map<int, std::string>& states) const;
  std::string silent_text(const std::map<int, std::string>& states) const;
  std::string name_of_rank(int rank) const;
  bool root_answers(Clock::time_point deadline);
  bool done(MPI_Request& request, Clock::time_point deadline);

  MPI_Comm world_, comm_;
  int rank_ = 0, size_ = 1, local_rank_ = 0;
  std::vector<std::string> hosts_;
  std::vector<int> first_of_host_;  ///< of each rank: the first rank of its host
  bool several_hosts_ = false;
  const CollectiveLog* log_ = nullptr;
  std::function<void()> before_leaving_;
  Peers* peers_ = nullptr;
  std::chrono::seconds grace_{10}, timeout_{300};
};

}  // namespace tessera
