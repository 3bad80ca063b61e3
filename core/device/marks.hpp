#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/base/stream.hpp"

namespace tessera {

/// Time stamps in the order of a GPU's streams: when the device reached each. They last as long as this.
/// On the host, whose work has ended when its call returns, there are none.
class TimeMarks {
 public:
  static constexpr int none = -1;

  TimeMarks();
  ~TimeMarks();
  TimeMarks(const TimeMarks&) = delete;
  TimeMarks& operator=(const TimeMarks&) = delete;

  /// Drops all marks and sets the clock, by the point behind all work of `stream` so far: where the device is idle, to
  /// the host's steady clock.
  void start(Stream& stream);
  /// The point behind all work of `stream` so far; none on the host and where dry. Not for a stream that is captured.
  int add(Stream& stream);
  /// When the device reached the mark, in nanoseconds of the host's steady clock, if it has. Never blocks.
  std::optional<std::int64_t> time(int mark) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Nanoseconds of the host's steady clock, which is one for all processes of a host.
std::int64_t host_nanoseconds();

}  // namespace tessera
