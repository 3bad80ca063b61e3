#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// External event: recorded outside of a CUDA graph, and waited for by work inside of it at every replay. Work that
/// waits for it waits for the latest record() before that run. In a host build, where work has ended when its call
/// returns, it is always reached. One for each purpose; must outlive the graphs that wait for it. Local.
class ExternalEvent {
 public:
  ExternalEvent() = default;
  ~ExternalEvent();
  ExternalEvent(const ExternalEvent&) = delete;
  ExternalEvent& operator=(const ExternalEvent&) = delete;

  /// Records the point behind all work of the stream so far. The stream must not be under capture.
  void record(Stream& stream);
  /// Orders all later launches of the stream, captured ones too, behind the event. Does not block the host.
  void hold(Stream& stream);
  /// Whether the device has reached it; true before the first record. Never blocks.
  bool reached() const;

 private:
  void* handle_ = nullptr;  ///< made at first use
};

}  // namespace tessera
