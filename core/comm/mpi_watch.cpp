#include "core/comm/mpi_watch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "core/comm/alarm.hpp"
#include "core/comm/peers.hpp"

namespace tessera {
namespace {

constexpr int tag_state = 1;  // message to rank 0: what a rank waits for, then its log's tail
constexpr int tag_alarm = 2;  // message from rank 0: a report has begun

std::string described(const Waiting& waiting) {
  return fmt::format("{} #{}{}{}", waiting.call, waiting.sequence, *waiting.label ? ", " : "", waiting.label);
}

/// A host as other ranks can compare it: name and boot. Containers of one name may be on several hosts.
using Place = std::array<char, MPI_MAX_PROCESSOR_NAME + 64>;

Place this_place() {
  Place place{};
  int length = 0;
  MPI_Get_processor_name(place.data(), &length);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  boot.copy(place.data() + MPI_MAX_PROCESSOR_NAME, 63);
  return place;
}

}  // namespace

MpiWatch::MpiWatch(MPI_Comm world) : world_(world), comm_(MPI_COMM_NULL) {
  comm_ = duplicate();
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  std::vector<Place> places(static_cast<std::size_t>(size_));
  places[static_cast<std::size_t>(rank_)] = this_place();
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, places.data(), sizeof(Place), MPI_CHAR, comm_, &request);
  done(request, Clock::time_point::max());
  // Open MPI calls the world's error handler for errors inside collectives, not that of their communicator.
  MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN);
  for (const Place& place : places) {
    hosts_.emplace_back(place.data());
    first_of_host_.push_back(static_cast<int>(std::ranges::find(places, place) - places.begin()));
  }
  several_hosts_ = std::ranges::any_of(first_of_host_, [](int first) { return first > 0; });
  const auto mine = first_of_host_.begin() + rank_;
  local_rank_ = static_cast<int>(std::count(first_of_host_.begin(), mine, *mine));
}

MpiWatch::~MpiWatch() { MPI_Comm_free(&comm_); }

MPI_Comm MpiWatch::duplicate() {
  // Non-blocking and waited for here: MPICH's blocking calls poll without yielding, which is slow if ranks share cores.
  MPI_Comm copy;
  MPI_Request request = MPI_REQUEST_NULL;
  const Waiting making{"the making of a communicator"};
  check(MPI_Comm_idup(world_, &copy, &request), making);
  if (comm_ == MPI_COMM_NULL)
    done(request, Clock::time_point::max());  // the first, in which a report would travel: bounded by the start's alarm
  else
    wait({&request, 1}, making);
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  return copy;
}

MPI_Comm MpiWatch::split(int group) {
  // Blocking, since MPI has no other: an alarm in place of a time-out.
  const Alarm alarm(timeout_, Exit::communication,
                    fmt::format("[r{} {}] has waited {} s in the making of a communicator", rank_, host(),
                                timeout_.count()));
  MPI_Comm part;
  check(MPI_Comm_split(world_, group, rank_, &part), {"the making of a communicator"});
  MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN);
  return part;
}

void MpiWatch::wait(std::span<MPI_Request> requests, const Waiting& waiting, Manner manner) {
  constexpr unsigned between_checks = 64;  // tests between two checks; a check costs about as much as a test
  constexpr unsigned soon = 1024;         // tests before a patient wait sleeps: a millisecond or less
  Clock::time_point deadline{};
  for (unsigned turn = 1;; ++turn) {
    int all = 0;
    check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE), waiting);
    if (all) return;
    if (turn % between_checks == 0) {
      const Clock::time_point now = Clock::now();
      if (deadline == Clock::time_point{}) deadline = now + timeout_;
      if (now > deadline) overdue(waiting, timeout_);
      check(waiting);
    }
    if (manner == Manner::patient && turn > soon)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    else
      sched_yield();
  }
}

std::string MpiWatch::waited(const Waiting& waiting, std::chrono::seconds timeout) const {
  return fmt::format("{} has waited {} s in {}", name_of_rank(rank_), timeout.count(), described(waiting));
}

std::string MpiWatch::name_of_rank(int rank) const {
  return several_hosts_ ? fmt::format("rank {} ({})", rank, hosts_[static_cast<std::size_t>(rank)])
                        : fmt::format("rank {}", rank);
}

/// A line for each rank that has not answered, or for each host of which no rank has.
std::string MpiWatch::silent_text(const std::map<int, std::string>& states) const {
  std::map<int, std::vector<int>> of_hosts;
  for (int r = 0; r < size_; ++r) of_hosts[first_of_host_[static_cast<std::size_t>(r)]].push_back(r);
  std::string text;
  for (const auto& [first, ranks] : of_hosts) {
    if (several_hosts_ && std::ranges::none_of(ranks, [&](int r) { return states.contains(r); })) {
      text += fmt::format("\n  {}: all its ranks ({}) are silent: host or network lost",
                          hosts_[static_cast<std::size_t>(first)], fmt::join(ranks, ", "));
      continue;
    }
    for (int r : ranks)
      if (!states.contains(r))
        text += fmt::format("\n  {} does not answer: it has ended, or computes", name_of_rank(r));
  }
  return text;
}

/// The text that rank 0 prints: why, who is silent, and either the first difference of the logs or what each rank was
/// doing. Logs are compared only if all are there: without some, the others differ merely by how far they are.
std::string MpiWatch::summary(const std::map<int, std::string>& states) const {
  std::string cause, places;
  std::map<int, std::string> tails;
  for (const auto& [rank, text] : states) {
    const std::size_t first = text.find('\n'), second = text.find('\n', first + 1);
    if (cause.empty()) cause = text.substr(0, first);
    places += fmt::format("\n  {} {}", name_of_rank(rank), text.substr(first + 1, second - first - 1));
    tails[rank] = text.substr(second + 1);
  }
  const std::string silent = silent_text(states);
  std::string operations = silent.empty() ? first_difference(tails) : "";
  if (operations.empty()) operations = "last collectives of rank 0:\n" + tails[0];
  return cause + silent + places + "\n" + operations;
}

void MpiWatch::check(int code, const Waiting& waiting) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  report(fmt::format("MPI failed on {} in {}: {}", name_of_rank(rank_), described(waiting), text), waiting);
}

void MpiWatch::check(const Waiting& waiting) {
  int called = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &called, MPI_STATUS_IGNORE);
  if (called) report("", waiting);
}

bool MpiWatch::done(MPI_Request& request, Clock::time_point deadline) {
  for (int flag = 0; Clock::now() < deadline; sched_yield()) {
    MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    if (flag) return true;
  }
  return false;
}

/// On rank 0: collects the states of all ranks that answer within the grace period.
std::map<int, std::string> MpiWatch::collect(const std::string& mine) {
  MPI_Request unused = MPI_REQUEST_NULL;
  for (int r = 1; r < size_; ++r) {
    MPI_Isend(nullptr, 0, MPI_BYTE, r, tag_alarm, comm_, &unused);
    MPI_Request_free(&unused);
  }
  std::map<int, std::string> states{{0, mine}};
  for (const auto deadline = Clock::now() + grace_; Clock::now() < deadline && std::ssize(states) < size_;
       sched_yield()) {
    int called = 0, bytes = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, tag_state, comm_, &called, &status);
    if (!called) continue;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    std::string state(static_cast<std::size_t>(bytes), '\0');
    MPI_Recv(state.data(), bytes, MPI_BYTE, status.MPI_SOURCE, tag_state, comm_, MPI_STATUS_IGNORE);
    states[status.MPI_SOURCE] = std::move(state);
  }
  return states;
}

void MpiWatch::report(const std::string& why, const Waiting& waiting) {
  // First line: why this rank began the report, empty if it joined. Second: what it waits for. Then its last
  // operations.
  std::string mine = fmt::format("{}\nis in {}\n{}", why, described(waiting), log_ ? log_->tail() : "");
  if (rank_ != 0) {
    MPI_Request sent = MPI_REQUEST_NULL;
    MPI_Isend(mine.data(), static_cast<int>(mine.size()), MPI_BYTE, 0, tag_state, comm_, &sent);
    const auto deadline = Clock::now() + grace_;
    if (!done(sent, deadline) || !root_answers(deadline))
      abort(Exit::communication, name_of_rank(0) + " does not answer; " + mine);
    leave(mine);
  }
  const std::map<int, std::string> states = collect(mine);
  const std::string text = summary(states);
  if (std::ssize(states) < size_) abort(Exit::communication, text);
  leave(text);
}

/// Whether rank 0 takes part in a report: it calls all ranks. A message to it may be sent although its host is gone.
bool MpiWatch::root_answers(Clock::time_point deadline) {
  int called = 0;
  do {
    MPI_Iprobe(0, tag_alarm, comm_, &called, MPI_STATUS_IGNORE);
    sched_yield();
  } while (!called && Clock::now() < deadline);
  return called != 0;
}

void MpiWatch::meet() {
  MPI_Request all_here = MPI_REQUEST_NULL;
  const Waiting end{"the end of the run"};
  check(MPI_Ibarrier(comm_, &all_here), end);
  wait({&all_here, 1}, end, Manner::patient);
}

void MpiWatch::leave(const std::string& why) {
  if (rank_ == 0) fmt::print(stderr, "communication failed: {}\n", why);
  std::fflush(nullptr);
  // Barrier: all ranks wait until rank 0 has printed, since a launcher may kill the others as soon as one rank ends.
  MPI_Request all_here = MPI_REQUEST_NULL;
  MPI_Ibarrier(comm_, &all_here);
  // Rank 0 has called, so it is not blamed: it listens for the grace period from its own time-out on.
  if (!done(all_here, Clock::now() + grace_ + std::chrono::seconds(2))) abort(Exit::communication, why);
  int main_thread = 1;
  MPI_Is_thread_main(&main_thread);
  if (main_thread) {  // else it is held in MPI
    const Alarm alarm(std::chrono::seconds(12), Exit::communication, "");  // in case that it never ends
    if (before_leaving_) before_leaving_();
  }
  // Not by MPI_Finalize, which unfinished operations may block or crash. UCX aborts if a message has not been received,
  // or memory is still registered, and the launcher then reports the signal instead of our exit code.
  end_all(Exit::communication);
}

void MpiWatch::abort(Exit code, const std::string& what) {
  fmt::print(stderr, "[r{} {}] {}\n", rank_, host(), what);
  end_all(code);
}

void MpiWatch::tell(Exit code) const {
  if (peers_) peers_->leaving(code);
}

void MpiWatch::end_all(Exit code) {
  const Alarm alarm(std::chrono::seconds(3), code, "");  // MPI_Abort waits for a launcher, which may be gone
  tell(code);
  std::fflush(nullptr);
  // Hydra drops output that it has not read when it hears of the abort: give it time.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  MPI_Abort(world_, static_cast<int>(code));
  std::_Exit(static_cast<int>(code));
}

}  // namespace tessera
