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

/// A process. `started` and `pid_space` distinguish it from another process with the same pid.
struct Process {
  std::string host, boot, pid_space;  ///< boot: the kernel's id of this boot
  std::int64_t pid = 0, started = 0;  ///< started: in clock ticks after the boot
};

Process this_process();

/// Contents of the file LOCK: the run that trains in the directory.
struct LockOwner {
  std::string nonce, job;  ///< job: batch job and its restart count ("1234.0"), or empty
  std::vector<Process> ranks;
};

/// Text of LOCK: JSON with a digest of itself.
std::string to_json(const LockOwner& owner);

/// Whether the owner of a lock still runs, as far as can be told without waiting. unclear: only a further touch of LOCK
/// would show that it runs.
enum class Life { running, ended, unclear };

/// Whether the run whose LOCK reads `text` (perhaps damaged) still runs, as process `me` of batch job `job` can tell.
Life life_of(const std::string& text, const Process& me, const std::string& job);

/// Interval at which an owner touches its LOCK, and the silence after which it counts as ended.
struct Heartbeat {
  std::chrono::milliseconds every{5000}, silence{30000};
};

/// Lock of a run directory: the file LOCK, created exclusively, with the pids of all ranks. A second run is refused,
/// the LOCK of a crashed run is taken over, and an orderly end removes it.
class RunLock {
 public:
  /// Takes the lock of directory `run`, which must exist. A thread of rank 0 touches the file (heartbeat). Throws
  /// Error{environment}, on all ranks, if another run holds the directory or no file can be written there. Collective
  /// over the world.
  RunLock(const std::filesystem::path& run, Control& control, const Heartbeat& heartbeat = {});
  /// The same by this process alone, which changes the directory without training. Local.
  explicit RunLock(const std::filesystem::path& run, const Heartbeat& heartbeat = {});
  /// Local.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Whether LOCK is still this run's, on rank 0; true on other ranks. Local.
  bool held() const;
  /// Throws Error{environment}, on all ranks, if LOCK is not this run's any more. The run was stopped for so long that
  /// another one took over, or somebody removed the file. Collective over the world; Local for a process alone.
  void require_held() const;

 private:
  void take(const LockOwner& owner);
  void keep_alive();

  std::filesystem::path path_;
  Control* control_;  ///< null: this process alone
  Heartbeat heartbeat_;
  std::string text_;               ///< rank 0: the text of its LOCK
  std::optional<PosixFile> file_;  ///< rank 0: its LOCK, even if the name belongs to another file by now
  std::jthread heart_;
};

}  // namespace tessera
