#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "core/comm/communicator.hpp"
#include "core/comm/control.hpp"

namespace tessera {

/// MPI for the life of the program: initialises with MPI_THREAD_FUNNELED, finalises at its end. One a process. Nothing
/// of <mpi.h> shows here.
class Mpi {
 public:
  Mpi(int* argc, char*** argv);
  ~Mpi();
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;                 ///< among the ranks of this host
  std::string host() const;
  static std::string version();
  /// Started under a batch system or launcher as several jobs of one rank (wrong --mpi)? The remedy, else empty.
  std::string launch_mistake() const;

  /// Data collectives of all ranks, on a communicator of their own. Everything starts non-blocking and is waited for by
  /// test and yield; progress hangs on the stream that is given here. A wait longer than `timeout` reports this rank's
  /// last operations, then leaves with exit 7 on every rank.
  std::unique_ptr<Communicator> world(Stream& stream, std::chrono::seconds timeout);
  std::unique_ptr<Control> control(std::chrono::seconds timeout);

  /// For a failure that the other ranks cannot learn of: prints with rank and host, flushes, MPI_Abort(code).
  [[noreturn]] void abort(Exit code, const std::string& what);
};

}  // namespace tessera
