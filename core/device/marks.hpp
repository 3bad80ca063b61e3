#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/base/stream.hpp"

namespace tessera {

/// Time stamps on a GPU's streams: when the device reached each mark. Marks live as long as this object. None on the
/// host, where work has ended when its call returns.
class TimeMarks {
 public:
  static constexpr int none = -1;

  TimeMarks();
  ~TimeMarks();
  TimeMarks(const TimeMarks&) = delete;
  TimeMarks& operator=(const TimeMarks&) = delete;

  /// Drops all marks and aligns the device's clock with the host's steady clock, at the point behind all work of
  /// `stream` so far. Exact only if the device is idle.
  void start(Stream& stream);
  /// Adds a mark behind all work of `stream` so far; returns `none` on the host and on a dry stream. The stream must
  /// not be under capture.
  int add(Stream& stream);
  /// When the device reached the mark, in nanoseconds of the host's steady clock; empty if it has not yet. Never
  /// blocks.
  std::optional<std::int64_t> time(int mark) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Nanoseconds of the host's steady clock, which all processes of a host share.
std::int64_t host_nanoseconds();

}  // namespace tessera
