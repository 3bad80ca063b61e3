#include "core/step/repeated_work.hpp"

namespace tessera {

void RepeatedWork::run(const State& state, const std::function<void()>& work) {
  Stream& stream = device_.compute();
  if (runs_ == 0) recorded_from_ = state;
  if (!stream.native() || state != recorded_from_ || runs_ < runs_before) {
    ++runs_;
    return work();
  }
  const bool recorded = static_cast<bool>(graph_);
  if (!recorded) {
    // A capture waits inside the driver for work under way, where no watchdog notices a rank that has gone: wait here.
    device_.wait(stream.record());
    device_.wait(device_.communication().record());
    device_.wait(device_.copies().record());
    graph_ = stream.capture(work);
  }
  stream.run(graph_);
  // Orders later work on the other streams behind the graph's.
  const Event done = stream.record();
  device_.communication().wait(done);
  device_.copies().wait(done);
  if (!recorded) return;  // the capture has called `work` already
  const DryPass walk(stream), sums(device_.copies());
  work();
  ++replays_;
}

}  // namespace tessera
