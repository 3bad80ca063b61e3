#include "app/training/tell/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "app/training/tell/profile_events.hpp"
#include "io/files/run_lock.hpp"

namespace tessera {
namespace {

constexpr std::int64_t steps_measured = 4, steps_before = 4;

}  // namespace

Profile::Profile(const RunConfig& config, Device& device, Control& control, LateReport& report)
    : path_(config.debug.profile), steps_(config.run.steps), device_(device), control_(control), report_(report) {}
Profile::~Profile() = default;

void Profile::before(std::int64_t number) {
  if (path_.empty() && !device_.compute().native()) return;
  if (!first_) first_ = number + std::clamp<std::int64_t>(steps_ - number + 1 - steps_measured, 0, steps_before);
  if (number == *first_) begin();
  device_.timeline().begin_step(number);
}

void Profile::after(std::int64_t number) {
  if (under_way_ && number == *first_ + steps_measured - 1) end();
}

void Profile::finish() {
  if (under_way_) end();
}

/// With debug.profile the device is idle at begin and end. So its clock can be aligned with the host's, and every
/// kernel belongs to the measured steps.
void Profile::begin() {
  under_way_ = true;
  if (!path_.empty()) {
    report_.finish();
    report_.pause();
    for (Stream* stream : {&device_.compute(), &device_.communication(), &device_.copies()})
      device_.wait(stream->record());
    kernels_ = std::make_unique<KernelLog>();
  }
  device_.timeline().record(device_.compute());
}

void Profile::end() {
  under_way_ = false;
  if (path_.empty()) return device_.timeline().stop();
  report_.finish();
  report_.pause();
  for (Stream* stream : {&device_.compute(), &device_.communication(), &device_.copies()})
    device_.wait(stream->record());
  device_.timeline().stop();
  const std::vector<KernelRun> kernels = kernels_->take();
  if (control_.rank() == 0 && !kernels_->missing().empty())
    fmt::print(stderr, "debug.profile: no kernels are shown: {}\n", kernels_->missing());
  // Only ranks of rank 0's host are shown, since hosts' clocks differ. Times count from the first event of all.
  const std::vector<std::string> hosts = control_.gather(this_process().boot);
  const bool shown = hosts[static_cast<std::size_t>(control_.rank())] == hosts.front();
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const Stretch& one : device_.timeline().on_host()) first = std::min(first, one.begin);
  const std::int64_t origin = -control_.max(shown ? -first : std::numeric_limits<std::int64_t>::min());
  write(shown ? profile_events(control_.rank(), origin, device_, *kernels_, kernels) : std::string());
}

/// Ranks append to the file one after the other, so that no rank must hold another's events in memory.
void Profile::write(const std::string& mine) {
  for (int rank = 0; rank <= control_.size(); ++rank) {
    Problems problems;
    const bool head = rank == 0, foot = rank == control_.size();
    if (control_.rank() == (foot ? 0 : rank) && (foot || !mine.empty())) {
      std::ofstream file(path_, head ? std::ios::trunc : std::ios::app);
      if (head)
        file << fmt::format(R"({{"displayTimeUnit":"ms","otherData":{{"ranks":{}}},"traceEvents":[)", control_.size())
             << "\n"
             << std::string_view(mine).substr(1);
      else
        file << (foot ? "\n]}\n" : mine);
      file.close();
      if (!file) problems.add(Exit::environment, "debug.profile: " + path_ + " cannot be written (disk full?)");
    }
    control_.agree(problems);
  }
}

}  // namespace tessera
