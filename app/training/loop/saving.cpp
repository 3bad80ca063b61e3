#include "app/training/loop/saving.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "io/checkpoint/branch.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/phase.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/convert/quantize_file.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// quantized.h5: the weights that training holds as codes, made from the masters as by `tessera quantize`.
std::optional<DerivedFile> quantized_weights(const RunConfig& config) {
  if (!config.checkpoint.quantized) return std::nullopt;
  const auto work_in = [weights = trained_weights(config)](const fs::path& folder) {
    QuantizeFileOptions options;
    options.in = folder / model_file;
    options.out = folder / quantized_file;
    options.formats = weights;
    options.panel_elements = std::int64_t{1} << 20;  // small, since the run's own memory is allocated too
    return options;
  };
  return DerivedFile{quantized_file, [=](const fs::path& folder) { make_quantized_file(work_in(folder)); },
                     [=](const fs::path& folder, int rank, int ranks) {
                       fill_quantized_file(work_in(folder), rank, ranks);
                     }};
}

}  // namespace

Saving::Saving(const Uses& uses, Origin origin, std::int64_t saved, const BestStep& best)
    : config_(uses.config),
      last_(uses.last),
      control_(uses.control),
      training_(uses.training),
      stop_(uses.stop),
      lock_(uses.lock),
      log_(uses.log),
      hooks_(uses.hooks),
      origin_(std::move(origin)),
      run_(uses.config.checkpoint.dir.get()),
      writer_(uses.device, uses.control, uses.parallel, quantized_weights(uses.config)),
      saved_(saved),
      best_(best) {
  if (config_.checkpoint.async) snapshot_.emplace(uses.device, training_.engine().fresh_state());
}

/// Time to finish a save under way and to make the last one.
Saving::Seconds Saving::needed() const { return writer_.under_way() ? 2 * longest_ : longest_; }

bool Saving::pressed() { return stop_.presses(needed(), control_); }

void Saving::add_to_best(std::int64_t step, const std::vector<double>& losses) {
  best_.add(step, static_cast<float>(losses[followed_set(config_)]));
}

Proceed Saving::at_boundary(std::int64_t step) {
  if (hooks_) hooks_->poll();
  const std::int64_t before = saved_;
  const bool busy = writer_.under_way();
  if (const auto losses = training_.take_evaluated()) add_to_best(step, *losses);
  const bool last = step == config_.run.steps || best_.enough(config_.run);
  const bool stop = stop_.due(step, needed(), control_) && !last, change = step == last_ && !last && !stop;
  const std::int64_t every = config_.checkpoint.every_steps;
  const bool best = config_.checkpoint.keep_best && best_.step() == step;
  const bool due = step != saved_ && (last || stop || change || best || (every > 0 && step > 0 && step % every == 0));
  if (due) training_.catch_up();  // outside of try_to_save: an error here is not a failed save and ends the run
  const Clock::time_point came = Clock::now();
  if (busy || due) {
    control_.wait_at_most(config_.comm.timeout());  // until the next step begins
    lock_.require_held();
  }
  if (busy) advance(due ? Waiting::until_committed : Waiting::not_at_all);
  if (due && step != saved_) last || stop || change ? save(step) : try_to_save(step);  // it may have been under way
  if (busy || due) blocked_ = blocked_.value_or(Seconds(0)) + (Clock::now() - came);
  if (log_ && saved_ != before) log_->saved(saved_);
  return stop ? Proceed::stop : last ? Proceed::end : change ? Proceed::change : Proceed::go_on;
}

MetricsRow Saving::timed(MetricsRow row) {
  if (const std::optional<Seconds> blocked = std::exchange(blocked_, std::nullopt))
    row.save_blocked_ms = blocked->count() * 1e3;
  return row;
}

void Saving::warn_waits() const {
  if (control_.rank() == 0 && waits_ > 0) fmt::print("{} saves waited for the one before\n", waits_);
}

void Saving::report_failure(std::int64_t step, const Error& error) const {
  const char* const how = saved_ == step ? "is saved" : "was not saved";
  if (control_.rank() == 0) fmt::print(stderr, "step {} {}, training goes on: {}\n", step, how, error.what());
}

/// Goes on with the save under way, to its end if a further save waits for it.
void Saving::advance(Waiting waiting) try {
  const Clock::time_point came = Clock::now();
  const bool waits = waiting == Waiting::until_committed;
  waits_ += waits;
  const std::optional<std::string> digest = waits ? writer_.close() : writer_.poll();
  began_.blocked += Clock::now() - came;
  if (!digest) return;
  const Seconds took = Clock::now() - began_.at;
  committed(began_.step, took, *digest, fmt::format(", training waited {:.3f} s", began_.blocked.count()));
} catch (const Error& error) {
  report_failure(began_.step, error);
}

void Saving::try_to_save(std::int64_t step) try {
  if (!snapshot_) return save(step);
  const Clock::time_point came = Clock::now();
  writer_.start(run_, training_.state(), origin_, *snapshot_);
  began_ = {step, came, Clock::now() - came};
} catch (const Error& error) {
  report_failure(step, error);
}

void Saving::save(std::int64_t step) {
  const Clock::time_point begin = Clock::now();
  const std::string digest = writer_.save(run_, training_.state(), origin_);
  const Seconds took = Clock::now() - begin;
  committed(step, took, digest, "");
}

/// Reports a committed save and applies retention to older checkpoints. Rank 0 alone removes files, which may take
/// long; all wait for it here, under the time-out of saves, since that of steps is shorter.
void Saving::committed(std::int64_t step, Seconds took, const std::string& digest, const std::string& waited) {
  saved_ = step;
  longest_ = std::max(longest_, took);
  const fs::path folder = run_ / step_folder(step);
  if (control_.rank() == 0) fmt::print("saved {} | {} | {:.2f} s{}\n", folder.string(), digest, took.count(), waited);
  settle_branch_after_save(run_, control_);
  const PhaseNote note(control_);
  enter_phase(control_, fault::Phase::retire);
  if (control_.rank() == 0) {
    std::fflush(stdout);
    retire_up_to(step);
    if (hooks_) hooks_->saved(step, folder, digest);
  }
  control_.agree({});  // mutation: nobody_waits_for_retention
}

/// Removes older checkpoints. A failure is reported and does not end the run. Local, for rank 0.
void Saving::retire_up_to(std::int64_t step) const {
  const CheckpointConfig& checkpoint = config_.checkpoint;
  Problems kept;
  attempt(kept, [&] {
    retire(run_, {checkpoint.keep_last, checkpoint.keep_every, step,
                  checkpoint.keep_best ? best_.by_loss() : std::vector<std::int64_t>()});
  });
  for (const Problem& problem : kept.list()) fmt::print(stderr, "older checkpoints are kept: {}\n", problem.text);
}

}  // namespace tessera
