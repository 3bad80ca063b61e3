#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/comm/control.hpp"

namespace tessera {

/// Notices within a second that the process of a rank has ended, and then ends all others with Exit::communication.
/// MPI's waits notice it only by their time-out, and not every launcher ends the other ranks. Without MPI: every rank
/// holds a TCP connection to rank 0. The system closes it when the process at its other end has ended, whatever ended
/// it. A process that is stopped, suspended or busy keeps it, so that nothing but an end counts. Ranks that end in
/// order say so first. What it cannot notice, a host without power or network, is left to the time-outs.
class Peers {
 public:
  /// Connects the ranks; null if there is one alone, or if they cannot be connected, which rank 0 then says on stderr.
  /// `hosts`: of every rank. Collective over the world.
  static std::unique_ptr<Peers> connect(Control& control, const std::vector<std::string>& hosts);
  /// Says that this rank has done its work. Call it after MPI_Finalize, which waits for the others too. Local.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Says that this rank is about to end with `code` for a reason that it has printed. The others end with the same
  /// code, those after three seconds that the launcher has left alive. Local.
  void leaving(Exit code);

 private:
  class Watch;
  explicit Peers(std::unique_ptr<Watch> watch);
  std::unique_ptr<Watch> watch_;
};

}  // namespace tessera
