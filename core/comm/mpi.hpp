#pragma once
#include <chrono>
#include <climits>
#include <cstdint>
#include <memory>
#include <string>

#include "core/comm/communicator.hpp"
#include "core/comm/control.hpp"
#include "core/comm/mesh.hpp"
#include "core/device/device.hpp"

namespace tessera {

/// When ranks compare which collectives they called: at step boundaries, by the trainer (Communicator::log()), or
/// before each operation, by the back end (debugging and recording).
enum class Compare { at_boundaries, before_each };

/// The transport of data. fastest: NCCL if every rank has a GPU of its own, none for one rank on a GPU, else MPI. mpi:
/// MPI in any case, staging device memory through the host's.
enum class Transport { fastest, mpi };

struct MpiOptions {
  Compare compare = Compare::at_boundaries;
  /// The most elements that one MPI call may count; tests lower it.
  std::int64_t most = INT_MAX;
  Transport transport = Transport::fastest;
};

/// MPI for the life of the program: initialises with MPI_THREAD_MULTIPLE and finalises at its end, unless somebody else
/// did. One a process. Nothing of <mpi.h> shows here.
class Mpi {
 public:
  /// Collective, as all that follows unless it says otherwise.
  Mpi(int* argc, char*** argv);
  ~Mpi();
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  int rank() const;  ///< Local, as the next six.
  int size() const;
  Ranks ranks(int expert = 1) const { return Ranks::in_world(size(), rank(), expert); }
  int local_rank() const;  ///< among the ranks of this host
  std::string host() const;
  static std::string version();
  static std::string nccl_version();  ///< "2.28.3", as found at run time; empty in a host build
  /// The remedy if the launcher started several runs of one rank instead of one run (wrong --mpi), else empty. Local.
  std::string launch_mistake() const;

  /// Data collectives of the groups of `ranks`, which are this process's (else Error{internal}), each on a communicator
  /// of its own. Everything starts non-blocking: over MPI it is waited for by test and yield, and progress hangs on the
  /// device's communication stream; over NCCL it runs on that stream. A wait longer than `timeout` reports every rank's
  /// last operations, then leaves with Exit::communication on every rank. One mesh at a time.
  Mesh mesh(Device& device, const Ranks& ranks, std::chrono::seconds timeout, const MpiOptions& options = {});
  /// A Control (votes) on a communicator of its own, with the same kind of time-out.
  std::unique_ptr<Control> control(std::chrono::seconds timeout);

  /// For a failure that the other ranks cannot learn of: prints with rank and host, flushes, MPI_Abort(code).
  [[noreturn]] void abort(Exit code, const std::string& what);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
