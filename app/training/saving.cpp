#include "app/training/saving.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <sstream>

#include "core/config/treatments.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/convert/quantize_file.hpp"
#include "io/files/text_file.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// The step folders of a run that it can resume from, newest first. Adds to `reasons` why others cannot. Throws
/// Error{environment} if one cannot be read now, since a run that goes on without it would replace it.
std::vector<fs::path> sound_steps(const fs::path& run, std::string& reasons) {
  std::vector<fs::path> sound;
  for (const StepFolder& folder : step_folders(run)) {
    const std::string reason = reason_not_resumable(folder.path);
    if (reason.empty())
      sound.insert(sound.begin(), folder.path);
    else
      reasons += "\n  " + reason;
  }
  return sound;
}

std::vector<fs::path> candidates_of(const Resume& resume, const fs::path& run) {
  const bool holds = !step_folders(run).empty();
  if (resume.from == "none") {
    if (holds)
      throw Error(
          Exit::file,
          run.string() +
              ": holds checkpoints that --resume none would train over; remove them, or name another checkpoint.dir");
    return {};
  }
  if (resume.from != "auto") {
    const fs::path chosen = find_checkpoint(resume.from);
    if (const std::string reason = reason_not_resumable(chosen); !reason.empty()) throw Error(Exit::file, reason);
    return {chosen};
  }
  std::string reasons;
  std::vector<fs::path> sound = sound_steps(run, reasons);
  if (holds && sound.empty())
    throw Error(Exit::file, run.string() + ": holds no valid checkpoint; move them away to start anew:" + reasons);
  if (!reasons.empty()) fmt::print(stderr, "checkpoints passed over:{}\n", reasons);
  if (holds && latest_step(run) != sound.front().filename().string())
    fmt::print(stderr, "{}: does not name the newest valid checkpoint {}, which is taken\n", (run / "latest").string(),
               sound.front().string());
  return sound;
}

}  // namespace

std::vector<fs::path> beginnings(const Resume& resume, const fs::path& run, Control& control) {
  std::string found;
  Problems problems;
  if (control.rank() == 0)
    attempt(problems, [&] {
      for (const fs::path& path : candidates_of(resume, run))
        found += fs::absolute(path).lexically_normal().string() + "\n";
    });
  control.agree(problems);
  std::istringstream lines(control.broadcast(found));
  std::vector<fs::path> paths;
  for (std::string line; std::getline(lines, line);) paths.emplace_back(line);
  return paths;
}

namespace {

/// Parent::kept, decided by rank 0. Collective over the world.
std::int64_t kept_step(const Checkpoint& checkpoint, const fs::path& run, Control& control) {
  const std::int64_t step = checkpoint.manifest().counters.step;
  std::error_code absent;
  const bool own = control.rank() == 0 && fs::equivalent(checkpoint.folder(), run / step_folder(step), absent);
  return control.max(own) != 0 ? step : -1;
}

/// A checkpoint's companions, on rank 0, which alone writes files like them. Collective over the world.
Companions companions_of(const Checkpoint& checkpoint, Control& control) {
  Companions companions;
  Problems problems;
  if (control.rank() == 0) attempt(problems, [&] { companions = checkpoint.companions(); });
  control.agree(problems);
  return companions;
}

/// A text that a checkpoint records; only rank 0 opens the file. Collective over the world.
std::string recorded(std::string (Checkpoint::*text)() const, const Checkpoint& checkpoint, Control& control) {
  std::string found;
  Problems problems;
  if (control.rank() == 0) attempt(problems, [&] { found = (checkpoint.*text)(); });
  control.agree(problems);
  return control.broadcast(found);
}

}  // namespace

Parent resume_from(const std::vector<fs::path>& candidates, const fs::path& run, Training& training, Device& device,
                   Control& control, const hdf5::Parallel* parallel) {
  for (std::size_t i = 0;; ++i) try {
      const Checkpoint checkpoint(candidates[i], control, parallel);
      training.restore([&](StateDict& state) { load(checkpoint, state, device, control); });
      const auto told = [&](auto text) { return recorded(text, checkpoint, control); };
      return {candidates[i],
              checkpoint.manifest(),
              told(&Checkpoint::changes),
              told(&Checkpoint::git_sha),
              told(&Checkpoint::libraries),
              companions_of(checkpoint, control),
              kept_step(checkpoint, run, control)};
    } catch (const Error& error) {
      // All ranks throw the same error, so that all try the next checkpoint.
      if (error.code() != Exit::file || i + 1 == candidates.size()) throw;
      if (control.rank() == 0) fmt::print(stderr, "{}; trying the checkpoint before\n", error.what());
    }
}

namespace {

/// quantized.h5: weights in the recipe's format, made from the masters as by `tessera quantize`.
std::optional<DerivedFile> quantized_weights(const RunConfig& config) {
  if (!config.checkpoint.quantized) return std::nullopt;
  const auto work_in = [format = coded_weights(config).front()](const fs::path& folder) {
    QuantizeFileOptions options;
    options.in = folder / model_file;
    options.out = folder / quantized_file;
    options.format = format;
    options.panel_elements = std::int64_t{1} << 20;  // small, since the run's own memory is allocated too
    return options;
  };
  return DerivedFile{quantized_file, [=](const fs::path& folder) { make_quantized_file(work_in(folder)); },
                     [=](const fs::path& folder, int rank, int ranks) {
                       fill_quantized_file(work_in(folder), rank, ranks);
                     }};
}

}  // namespace

Saving::Saving(Device& device, const RunConfig& config, Control& control, Training& training, Stop& stop,
               const RunLock& lock, const hdf5::Parallel* parallel, Origin origin, std::int64_t saved)
    : config_(config),
      control_(control),
      training_(training),
      stop_(stop),
      lock_(lock),
      origin_(std::move(origin)),
      run_(config.checkpoint.dir.get()),
      writer_(device, control, parallel, quantized_weights(config)),
      saved_(saved) {
  if (config.checkpoint.async) snapshot_.emplace(device, training.engine().fresh_state());
}

/// Time to finish a save under way and to make the last one.
Saving::Seconds Saving::needed() const { return writer_.under_way() ? 2 * longest_ : longest_; }

bool Saving::pressed() { return stop_.presses(needed(), control_); }

Proceed Saving::operator()(std::int64_t step) {
  const bool busy = writer_.under_way();
  const bool last = step == config_.run.steps, stop = stop_.due(step, needed(), control_) && !last;
  const std::int64_t every = config_.checkpoint.every_steps;
  const bool due = step != saved_ && (last || stop || (every > 0 && step > 0 && step % every == 0));
  if (due) training_.catch_up();  // outside of try_to_save: an error here is not a failed save and ends the run
  const Clock::time_point came = Clock::now();
  const bool goes_on = busy && (due || writer_.ready());
  if (goes_on || due) lock_.require_held();
  if (goes_on) go_on_with_save(due);
  if (due && step != saved_) last || stop ? save(step) : try_to_save(step);  // it may have been under way
  if (busy || due) blocked_ = blocked_.value_or(Seconds(0)) + (Clock::now() - came);
  return stop ? Proceed::stop : Proceed::go_on;
}

MetricsRow Saving::timed(MetricsRow row) {
  if (const std::optional<Seconds> blocked = std::exchange(blocked_, std::nullopt))
    row.save_blocked_ms = blocked->count() * 1e3;
  return row;
}

void Saving::warn_waits() const {
  if (control_.rank() == 0 && waits_ > 0) fmt::print("{} saves waited for the one before\n", waits_);
}

void Saving::dropped(std::int64_t step, const Error& error) const {
  const char* const how = saved_ == step ? "is saved" : "was not saved";
  if (control_.rank() == 0) fmt::print(stderr, "step {} {}, training goes on: {}\n", step, how, error.what());
}

/// Advances the save under way; with `wait` finishes it, since there is one save at a time.
void Saving::go_on_with_save(bool wait) try {
  const Clock::time_point came = Clock::now();
  waits_ += wait;
  const std::optional<std::string> digest = wait ? writer_.finish() : writer_.advance();
  began_.blocked += Clock::now() - came;
  if (!digest) return;
  const Seconds took = Clock::now() - began_.at;
  committed(began_.step, took,
            fmt::format("{} | {:.2f} s, training waited {:.3f} s", *digest, took.count(), began_.blocked.count()));
} catch (const Error& error) {
  dropped(began_.step, error);
}

void Saving::try_to_save(std::int64_t step) try {
  if (!snapshot_) return save(step);
  const Clock::time_point came = Clock::now();
  writer_.begin(run_, training_.state(), origin_, *snapshot_);
  began_ = {step, came, Clock::now() - came};
} catch (const Error& error) {
  dropped(step, error);
}

void Saving::save(std::int64_t step) {
  const Clock::time_point begin = Clock::now();
  const std::string digest = writer_.save(run_, training_.state(), origin_);
  const Seconds took = Clock::now() - begin;
  committed(step, took, fmt::format("{} | {:.2f} s", digest, took.count()));
}

/// Reports a committed save and applies retention to older checkpoints.
void Saving::committed(std::int64_t step, Seconds took, const std::string& what) {
  saved_ = step;
  longest_ = std::max(longest_, took);
  if (control_.rank() == 0) fmt::print("saved {} | {}\n", (run_ / step_folder(step)).string(), what);
  writer_.set_aside(run_);
  if (control_.rank() != 0) return;
  std::fflush(stdout);
  Problems kept;  // a failure to delete older checkpoints is reported and does not end the run
  attempt(kept, [&] { retire(run_, {config_.checkpoint.keep_last, config_.checkpoint.keep_every, step}); });
  for (const Problem& problem : kept.list()) fmt::print(stderr, "older checkpoints are kept: {}\n", problem.text);
}

}  // namespace tessera
