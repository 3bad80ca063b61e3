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
    // Recording waits inside the driver for what is under way, where nobody notices a rank that has gone.
    device_.wait(stream.record());
    device_.wait(device_.communication().record());
    device_.wait(device_.copies().record());
    graph_ = stream.capture(work);
  }
  stream.run(graph_);
  // What follows on those streams outside the graph comes after what the graph did there.
  const Event done = stream.record();
  device_.communication().wait(done);
  device_.copies().wait(done);
  if (!recorded) return;  // capturing walked through the work
  const DryPass walk(stream), sums(device_.copies());
  work();
  ++replays_;
}

}  // namespace tessera
