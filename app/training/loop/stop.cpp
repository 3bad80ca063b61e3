#include "app/training/loop/stop.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/base/error.hpp"

namespace tessera {
namespace {

/// Causes that end a run, in rising order: if ranks have seen several, the greatest is reported.
struct Cause {
  const char* name;
  int signal = 0;
};
constexpr Cause causes[] = {{"--time-limit"},     {"--stop-at"},        {"SIGUSR2", SIGUSR2},
                            {"SIGUSR1", SIGUSR1}, {"SIGTERM", SIGTERM}, {"SIGINT", SIGINT}};
constexpr int time_limit = 1, stop_at = 2;  // numbers of causes; 0: none

int number_of(int signal) {
  const auto found = std::ranges::find(causes, signal, &Cause::signal);
  return static_cast<int>(found - std::begin(causes)) + 1;
}

std::atomic<int> asked = 0;                 // the first signal; 0: none
std::atomic<std::int64_t> interrupted = 0;  // time of the first INT, milliseconds of the monotonic clock; 0: not yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t milliseconds() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);  // async-signal-safe
  return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

extern "C" void on_signal(int signal) {
  int none = 0;
  asked.compare_exchange_strong(none, signal);
  if (signal != SIGINT) return;
  const std::int64_t first = interrupted, now = milliseconds();
  if (first != 0 && now - first > 1000) _exit(static_cast<int>(Exit::internal));
  if (first == 0) interrupted = now;
}

/// Takes the signals of `causes` until the process ends.
void listen(const sigset_t& signals) {
  for (int signal = 0;;)
    if (sigwait(&signals, &signal) == 0) on_signal(signal);
}

}  // namespace

// Signals are blocked where anything is computed. A handler that interrupts a product of oneDNN on the product's stack
// damages what the generated code keeps there (seen with 2.6 and AVX2: damaged heaps, crashes). The handler is for
// threads of libraries that were there before.
Stop::Stop() {
  asked = 0;
  interrupted = 0;
  sigset_t signals;
  sigemptyset(&signals);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const Cause& cause : causes) {
    if (cause.signal == 0) continue;
    sigaction(cause.signal, &action, nullptr);
    sigaddset(&signals, cause.signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // here, and in every thread that is made from now on
  static std::once_flag listens;
  std::call_once(listens, [&] { std::thread(listen, signals).detach(); });
}

/// Time since the last call. It counts as a step if one has begun then.
std::chrono::duration<double> Stop::lap() {
  const std::chrono::duration<double> took = Clock::now() - std::exchange(last_, Clock::now());
  if (std::exchange(stepping_, false)) longest_step_ = std::max(longest_step_, took);
  return took;
}

bool Stop::late(std::chrono::duration<double> needed) const {
  return limits_.time && (last_ - begin_) + needed >= *limits_.time;
}

bool Stop::agreed(int mine, Control& control) {
  const auto cause = static_cast<std::size_t>(control.max(mine));
  if (cause > 0) cause_ = causes[cause - 1].name;
  return cause > 0;
}

bool Stop::due(std::int64_t step, std::chrono::duration<double> save, Control& control) {
  lap();
  stepping_ = true;
  if (pressed_) return true;
  const bool there = limits_.step && step >= *limits_.step;
  const int signal = asked;
  const bool late = this->late(longest_step_ + 1.5 * save);
  return agreed(signal != 0 ? number_of(signal) : there ? stop_at : late ? time_limit : 0, control);
}

bool Stop::presses(std::chrono::duration<double> save, Control& control) {
  const std::chrono::duration<double> pass = lap();
  const int signal = asked;
  if (!pressed_)
    pressed_ = agreed(signal != 0 ? number_of(signal) : late(pass + 1.5 * save) ? time_limit : 0, control);
  return pressed_;
}

void Stop::keep_exit_codes() const {
  if (asked == 0) return;
  std::fflush(nullptr);
  if (::fork() != 0) return;
  constexpr useconds_t tenth_of_a_second = 100'000;
  ::close_range(STDERR_FILENO + 1, ~0U, 0);  // among them may be copies of the output's pipes
  // Closes one after the other: Hydra looks for ended ranks after each closed pipe but the last.
  for (int output : {STDOUT_FILENO, STDERR_FILENO}) {
    ::usleep(tenth_of_a_second);
    ::close(output);
  }
  _exit(0);
}

}  // namespace tessera
