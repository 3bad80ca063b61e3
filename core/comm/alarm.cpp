#include "core/comm/alarm.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <utility>

namespace tessera {
namespace {

/// What the handler needs. Atomic, because it may run on any thread.
std::atomic<const char*> words = nullptr;
std::atomic<std::size_t> length = 0;
std::atomic<int> end_code = 0;
Alarm* innermost = nullptr;

extern "C" void on_alarm(int) {
  if (length > 0 && ::write(STDERR_FILENO, words, length) < 0) ::_exit(end_code);
  ::_exit(end_code);
}

void arm(const std::string& what, int code, unsigned seconds) {
  words = what.data();
  length = what.size();
  end_code = code;
  ::alarm(std::max(1U, seconds));
}

}  // namespace

Alarm::Alarm(std::chrono::seconds limit, Exit code, std::string what)
    : what_(what.empty() ? "" : std::move(what) + "\n"),
      code_(static_cast<int>(code)),
      before_(std::exchange(innermost, this)),
      left_(::alarm(0)) {
  std::signal(SIGALRM, on_alarm);
  arm(what_, code_, static_cast<unsigned>(limit.count()));
}

Alarm::~Alarm() {
  ::alarm(0);
  innermost = before_;
  if (before_) arm(before_->what_, before_->code_, left_);
}

}  // namespace tessera
