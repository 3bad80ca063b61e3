#pragma once
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/training/run_request.hpp"
#include "app/training/stop.hpp"
#include "app/training/training.hpp"
#include "io/checkpoint/writer.hpp"
#include "io/files/run_lock.hpp"

namespace tessera {

/// The checkpoints that a run may begin from, the best first; empty: from initial weights. Throws the same on all
/// ranks: Error{file} for a directory whose checkpoints are all invalid, and where `none` would train over them.
/// Collective.
std::vector<std::filesystem::path> beginnings(const Resume& resume, const std::filesystem::path& run, Control& control);

/// The checkpoint that a run resumes from.
struct Parent {
  std::filesystem::path folder;
  Manifest manifest;
  std::string changes;     ///< Origin's, as it was saved
  std::int64_t kept = -1;  ///< its step where it is a step folder of the run directory; -1: it lies elsewhere
};
/// Loads the first of `candidates` whose payload is whole, for the run in `run`; says what was wrong with the others.
/// Collective.
Parent resume_from(const std::vector<std::filesystem::path>& candidates, const std::filesystem::path& run,
                   Training& training, Device& device, Control& control, const hdf5::Parallel* parallel);

/// Saves between steps as `checkpoint` asks, and always after the last step or before an early end. A save that fails
/// in the middle of a run is reported and training goes on. With checkpoint.async saves in the middle of a run are
/// written while it goes on, one at a time: one that falls due meanwhile waits for it. One a rank; calls are
/// collective.
class Saving {
 public:
  /// `parallel`: as CheckpointWriter takes it. `saved`: the step that the run directory's newest checkpoint holds
  /// already; -1: none.
  Saving(Device& device, const RunConfig& config, Control& control, Training& training, Stop& stop, const RunLock& lock,
         const hdf5::Parallel* parallel, Origin origin, std::int64_t saved);

  Proceed operator()(std::int64_t step);
  std::int64_t saved() const { return saved_; }  ///< the step that was saved last; -1: none. Local.
  std::int64_t snapshot_bytes() const { return snapshot_ ? snapshot_->bytes() : 0; }  ///< Local.
  /// The row with how long saves have held up training since the last one was asked for; nothing: none did. Local.
  MetricsRow timed(MetricsRow row);
  /// Says how many saves have waited for the one before. Rank 0's; local.
  void warn_waits() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  void go_on_with_save(bool wait);
  void save(std::int64_t step);
  void try_to_save(std::int64_t step);
  void dropped(std::int64_t step, const Error& error) const;
  void committed(std::int64_t step, Seconds took, const std::string& what);

  const RunConfig& config_;
  Control& control_;
  Training& training_;
  Stop& stop_;
  const RunLock& lock_;
  Origin origin_;
  std::filesystem::path run_;
  std::optional<Snapshot> snapshot_;  ///< with checkpoint.async
  CheckpointWriter writer_;           ///< before the snapshot's end, which its threads read
  std::int64_t saved_;
  Seconds longest_{0};
  struct Began {
    std::int64_t step = -1;
    Clock::time_point at;
    Seconds blocked{0};
  } began_;  ///< the save that is under way
  std::optional<Seconds> blocked_;
  std::int64_t waits_ = 0;
};

}  // namespace tessera
