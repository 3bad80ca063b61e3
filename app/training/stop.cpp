#include "app/training/stop.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "kernels/base/error.hpp"

namespace tessera {
namespace {

constexpr int watched[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGINT};

volatile std::sig_atomic_t asked = 0;
volatile std::sig_atomic_t interrupted = 0;
volatile time_t interrupted_at = 0;

time_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);  // may be called by a handler
  return time.tv_sec;
}

extern "C" void on_signal(int signal) {
  asked = 1;
  if (signal != SIGINT) return;
  if (interrupted && now() - interrupted_at > 1) _exit(static_cast<int>(Exit::internal));
  if (!interrupted) interrupted_at = now();
  interrupted = 1;
}

}  // namespace

Stop::Stop(const Limits& limits) : limits_(limits) {
  asked = 0;
  interrupted = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (int signal : watched) sigaction(signal, &action, nullptr);
}

Stop::~Stop() {
  for (int signal : watched) std::signal(signal, SIG_DFL);
}

bool Stop::due(std::int64_t step, std::chrono::duration<double> save, Control& control) {
  const auto time = Clock::now();
  if (stepped_) longest_step_ = std::max<std::chrono::duration<double>>(longest_step_, time - last_);
  stepped_ = true;
  last_ = time;
  const bool late = limits_.time && (time - begin_) + longest_step_ + 1.5 * save >= *limits_.time;
  const bool there = limits_.step && step >= *limits_.step;
  return control.max(asked || late || there) != 0;
}

}  // namespace tessera
