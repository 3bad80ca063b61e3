#pragma once
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/training/best_step.hpp"
#include "app/training/run_request.hpp"
#include "app/training/stop.hpp"
#include "app/training/training.hpp"
#include "io/checkpoint/writer.hpp"
#include "io/files/run_lock.hpp"

namespace tessera {

/// The checkpoints that a run may resume from, the best first; empty: a fresh start. Throws Error{file} on all ranks if
/// a directory's checkpoints are all invalid, or if `none` would train over checkpoints. Collective over the world.
std::vector<std::filesystem::path> beginnings(const Resume& resume, const std::filesystem::path& run, Control& control);

/// The checkpoint that a run resumes from.
struct Parent {
  std::filesystem::path folder;
  Manifest manifest;
  std::string changes;     ///< Origin::changes at the save
  std::string git_sha, libraries;  ///< of the program that saved it
  Companions companions;
  std::int64_t kept = -1;  ///< its step if it is a step folder of the run directory; -1: it lies elsewhere
};
/// Loads the first of `candidates` whose payload is undamaged, for the run in `run`; reports what was wrong with those
/// before it. Collective over the world.
Parent resume_from(const std::vector<std::filesystem::path>& candidates, const std::filesystem::path& run,
                   Training& training, Device& device, Control& control, const hdf5::Parallel* parallel);

/// Saves checkpoints between steps as the deck's `checkpoint` says, and always after the last step or before an early
/// end. A failed save in the middle of a run is reported, and training goes on. With checkpoint.async, saves in the
/// middle of a run are written while training goes on, one at a time: a save that falls due meanwhile waits for the one
/// before. One a rank. Collective over the world, except where a function says Local.
class Saving {
 public:
  /// `parallel`: for CheckpointWriter. `saved`: the step of the run directory's newest checkpoint; -1: none. `best`: of
  /// the starts before.
  Saving(Device& device, const RunConfig& config, Control& control, Training& training, Stop& stop, const RunLock& lock,
         const hdf5::Parallel* parallel, Origin origin, std::int64_t saved, const BestStep& best);

  Proceed operator()(std::int64_t step);
  /// Whether nothing may come before a save any more, by Stop::presses().
  bool pressed();
  std::int64_t saved() const { return saved_; }  ///< the step saved last; -1: none. Local.
  const BestStep& best() const { return best_; }  ///< Local.
  /// Takes the loss of an evaluation that a stop had abandoned, after the step saved last. Local.
  void made_up_for(double loss) { best_.add(saved_, static_cast<float>(loss)); }
  std::int64_t snapshot_bytes() const { return snapshot_ ? snapshot_->bytes() : 0; }  ///< Local.
  /// Adds to a row the time for which saves have blocked training since the last call, if any did. Local.
  MetricsRow timed(MetricsRow row);
  /// Prints, on rank 0, how many saves have waited for the one before. Local.
  void warn_waits() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  Seconds needed() const;
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
