// What a build without GPUs answers: the device has no clock of its own, and no log of kernels.
#include "core/device/kernel_log.hpp"
#include "core/device/marks.hpp"

namespace tessera {

KernelLog::KernelLog() = default;
KernelLog::~KernelLog() = default;
std::vector<KernelRun> KernelLog::take() {
  open_ = false;
  return {};
}
std::uint32_t KernelLog::number_of(const Stream&) const { return 0; }

struct TimeMarks::State {};

TimeMarks::TimeMarks() = default;
TimeMarks::~TimeMarks() = default;
void TimeMarks::start(Stream&) {}
int TimeMarks::add(Stream&) { return none; }
std::optional<std::int64_t> TimeMarks::time(int) const { return std::nullopt; }

}  // namespace tessera
