#pragma once
#include <chrono>
#include <climits>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/comm/control.hpp"
#include "core/comm/mesh.hpp"
#include "core/device/device.hpp"

namespace tessera {

/// When ranks compare the logs of their collectives: at step boundaries, by the trainer (Communicator::log()), or
/// before each operation, by the back end (for debugging).
enum class Compare { at_boundaries, before_each };

/// The transport of data. fastest: NCCL if every rank has a GPU of its own; no transport for one rank on a GPU; else
/// MPI. mpi: always MPI, which stages device memory through page-locked host memory.
enum class Transport { fastest, mpi };

struct MpiOptions {
  Compare compare = Compare::at_boundaries;
  /// Largest count of elements in one MPI call; tests lower it.
  std::int64_t most = INT_MAX;
  Transport transport = Transport::fastest;
  bool copy_engines = true;  ///< whether GPUs of one host write to each other's opened buffers, beside NCCL
};

/// MPI for the life of the program: initialises MPI with MPI_THREAD_MULTIPLE and finalises it in the destructor, unless
/// MPI had been initialised before. One a process. This header does not include <mpi.h>.
class Mpi {
 public:
  /// Throws what start_timeout() throws. Collective over the world, as every member that does not say Local.
  Mpi(int* argc, char*** argv);
  /// Ends MPI. Where that may hang (MPICH before 5.0 with Hydra, over several hosts), rank 0 ends all ranks instead,
  /// with the code of ends_with(), and nobody returns. Over several hosts this lasts 10 s after the last rank has come.
  ~Mpi();
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  int rank() const;  ///< Local, as the next nine members.
  int size() const;
  Ranks ranks(int expert = 1, int groups = 1) const { return Ranks::in_world(size(), rank(), expert, groups); }
  int local_rank() const;  ///< among the ranks of this host
  std::string host() const;
  const std::vector<std::string>& hosts() const;  ///< of every rank
  bool several_hosts() const;
  static std::string version();
  static std::string launcher();  ///< path of the library's mpiexec, as the build found it; empty if none is there now
  static std::string nccl_version();  ///< "2.28.3", as found at run time; empty in a host build
  /// Explains the remedy where MPI_Init would end the program: Open MPI before 5.0 under srun without PMIx; else empty.
  /// Asked before MPI starts.
  static std::string start_mistake();
  /// Explains the remedy if the launcher started several runs of one rank instead of one run (wrong --mpi); else empty.
  std::string launch_mistake() const;

  /// Sets the exit code of the run, equal on all ranks, for the destructor. Local.
  void ends_with(int code);
  /// Bound on the time in which the ranks find each other: TESSERA_TIMEOUT, in seconds, or 300. Throws Error{usage} if
  /// the variable is no number of seconds. Local.
  static std::chrono::seconds start_timeout();

  /// Makes the data collectives of the groups of `ranks`, each group on a communicator of its own. `ranks` must be this
  /// process's (else Error{internal}). All operations are non-blocking. Over MPI, waits test and yield, and the
  /// device's communication stream has the progress hook; over NCCL, operations run on that stream. A wait longer than
  /// `timeout` reports every rank's last operations, then leaves with Exit::communication on every rank. One mesh at a
  /// time.
  Mesh mesh(Device& device, const Ranks& ranks, std::chrono::seconds timeout, const MpiOptions& options = {});
  /// Makes a Control (votes) on a communicator of its own. `timeout` becomes that of all waits, as of a mesh.
  std::unique_ptr<Control> control(std::chrono::seconds timeout);

  /// Whether each `group` neighbouring ranks are on one host, on GPUs that reach each other's memory. `gpu`: this
  /// rank's; below 0: it has none.
  bool gpus_reach_each_other(Control& control, int gpu, int group) const;

  /// Ends the run for a failure that the other ranks cannot learn of: prints `what` with rank and host, flushes, calls
  /// MPI_Abort(code). Local.
  [[noreturn]] void abort(Exit code, const std::string& what);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
