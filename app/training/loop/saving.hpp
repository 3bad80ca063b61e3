#pragma once
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/training/loop/best_step.hpp"
#include "app/training/loop/hooks.hpp"
#include "app/training/loop/stop.hpp"
#include "app/training/loop/training.hpp"
#include "app/training/tell/run_log.hpp"
#include "io/checkpoint/writer.hpp"
#include "io/files/run_lock.hpp"

namespace tessera {

/// Saves checkpoints between steps as the deck's `checkpoint` says, and always after the last step, before another
/// recipe and before an early end. A failed save in the middle of a run is reported, and training goes on. With
/// checkpoint.async, saves in the middle of a run are written while training goes on, one at a time. A save that falls
/// due meanwhile waits for the one before. One a rank. Collective over the world, except where a function says Local.
class Saving {
 public:
  struct Uses {
    Device& device;
    const RunConfig& config;
    std::int64_t last;  ///< step of this segment of precision.schedule
    Control& control;
    Training& training;
    Stop& stop;
    const RunLock& lock;             ///< of the run directory
    const hdf5::Parallel* parallel;  ///< for CheckpointWriter
    RunLog* log;                     ///< is told of each save; null except on rank 0
    Hooks* hooks;                    ///< likewise
  };
  /// `saved`: the step of the run directory's newest checkpoint; -1: none. `best`: of the starts before.
  Saving(const Uses& uses, Origin origin, std::int64_t saved, const BestStep& best);

  /// To be called before the first step and after each step, with the number of steps done. Saves what is due and
  /// decides whether to go on. Throws on all ranks if the last save of a run fails, or if another run holds the
  /// directory.
  Proceed at_boundary(std::int64_t step);
  /// Whether nothing may come before a save any more, by Stop::presses().
  bool pressed();
  std::int64_t saved() const { return saved_; }  ///< the step saved last; -1: none. Local.
  const BestStep& best() const { return best_; }  ///< Local.
  /// Takes the losses, by set, of an evaluation that a stop had abandoned, after the step saved last. Local.
  void add_evaluation(const std::vector<double>& losses) { add_to_best(saved_, losses); }
  std::int64_t snapshot_bytes() const { return snapshot_ ? snapshot_->bytes() : 0; }  ///< Local.
  /// Adds to a row the time for which saves have blocked training since the last call, if any did. Local.
  MetricsRow timed(MetricsRow row);
  /// Prints, on rank 0, how many saves have waited for the one before. Local.
  void warn_waits() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  Seconds needed() const;
  void add_to_best(std::int64_t step, const std::vector<double>& losses);
  enum class Waiting { until_committed, not_at_all };
  void advance(Waiting waiting);
  void save(std::int64_t step);
  void try_to_save(std::int64_t step);
  void report_failure(std::int64_t step, const Error& error) const;
  void committed(std::int64_t step, Seconds took, const std::string& digest, const std::string& waited);
  void retire_up_to(std::int64_t step) const;

  const RunConfig& config_;
  const std::int64_t last_;
  Control& control_;
  Training& training_;
  Stop& stop_;
  const RunLock& lock_;
  RunLog* log_;
  Hooks* hooks_;
  Origin origin_;
  std::filesystem::path run_;
  std::optional<Snapshot> snapshot_;  ///< with checkpoint.async
  CheckpointWriter writer_;           ///< declared after snapshot_, which its threads read: destroyed first
  std::int64_t saved_;
  BestStep best_;
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
