#pragma once
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/control.hpp"
#include "core/config/config.hpp"

namespace tessera {

/// The deck's commands run.on_save and run.on_end. They run beside training, one at a time, each in a process group of
/// its own, and may take run.hook_timeout_s. A failure is told on standard error and changes nothing else. Rank 0 alone
/// has one. Local.
class Hooks {
 public:
  /// `directory`: the run's.
  Hooks(const RunSection& run, const std::filesystem::path& directory);
  ~Hooks();  ///< ends a command that still runs
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  /// To be called when a save is committed: starts on_save, or has it wait for the command before. Of several that
  /// wait, the newest runs.
  void saved(std::int64_t step, const std::filesystem::path& checkpoint, const std::string& digest);
  /// To be called between steps: starts a command that waits, and ends one whose time is over. Does not wait.
  void poll();
  /// Waits for the commands of saves that run or wait: twice hook_timeout_s at most.
  void settle();
  /// Runs on_end after `step` steps: `why` as a sentence, `code` the program's exit code. Waits for it, and for what
  /// runs and waits before it: three times hook_timeout_s at most.
  void ended(std::int64_t step, const std::string& why, int code);

 private:
  using Clock = std::chrono::steady_clock;
  /// A run of a command that is due.
  struct Due {
    const char* key;
    std::string command;
    std::vector<std::pair<const char*, std::string>> variables;
  };
  void start(const Due& due);
  bool running();
  void finish();

  const RunSection run_;
  std::filesystem::path directory_;
  std::string last_checkpoint_, last_digest_;
  std::optional<Due> waiting_;
  const char* key_ = "";  ///< of the command that runs
  pid_t process_ = 0;     ///< it, and its group; 0: none
  Clock::time_point until_;
};

/// Runs settle() of rank 0's `hooks` (null elsewhere) while the other ranks wait. Collective over the world.
void settle_hooks(Hooks* hooks, const RunConfig& config, Control& control);
/// Runs ended() of rank 0's `hooks` (null elsewhere) while the other ranks wait. Collective over the world.
void end_hooks(Hooks* hooks, const RunConfig& config, Control& control, std::int64_t step, const std::string& why,
               int code);

}  // namespace tessera
