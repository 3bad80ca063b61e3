#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/control.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {

/// One process. `started` and `pid_space` tell it from another one of the same pid.
struct Process {
  std::string host, boot, pid_space;  ///< boot: the id that the kernel gave this boot
  std::int64_t pid = 0, started = 0;  ///< started: clock ticks after the boot
};

Process this_process();

/// What LOCK says: who trains in the directory.
struct LockOwner {
  std::string nonce, job;  ///< job: the batch system's and its restart count ("1234.0"), or empty
  std::vector<Process> ranks;
};

/// JSON that carries a digest of itself.
std::string to_json(const LockOwner& owner);

/// Whether a lock's owner still runs, as far as can be told without waiting. unclear: it runs if it touches LOCK again.
enum class Life { running, ended, unclear };

/// The same of the run that wrote `text`, whole or damaged, into LOCK, as process `me` of batch job `job` sees it.
Life life_of(const std::string& text, const Process& me, const std::string& job);

/// How often an owner touches its LOCK, and after which silence it is taken for dead.
struct Heartbeat {
  std::chrono::milliseconds every{5000}, silence{30000};
};

/// A run directory that one run holds: the file LOCK, made exclusively, with the pids of all ranks. A second run is
/// refused, a crashed one's LOCK is taken over, and an orderly end removes it.
class RunLock {
 public:
  /// The directory exists. Rank 0 keeps a thread that touches the file. Throws Error{environment} on all ranks where
  /// another run holds the directory or no file can be written there. Collective.
  RunLock(const std::filesystem::path& run, Control& control, const Heartbeat& heartbeat = {});
  /// Local.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Whether the file is still this run's, on rank 0; true elsewhere. Local.
  bool held() const;
  /// Throws Error{environment} on all ranks where the file is this run's no more: the run was stopped for so long that
  /// another one took over, or somebody removed it. Collective.
  void require_held() const;

 private:
  void take(const LockOwner& owner);

  std::filesystem::path path_;
  Control& control_;
  Heartbeat heartbeat_;
  std::string text_;               ///< rank 0: the text of its LOCK
  std::optional<PosixFile> file_;  ///< rank 0: its LOCK, even if another file has the name by now
  std::jthread heart_;
};

}  // namespace tessera
