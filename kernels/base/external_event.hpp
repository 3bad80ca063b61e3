#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// External event: a point that is recorded again and again. What waits for it waits, whenever it runs, for the latest
/// record before; captured work does at every run of its graph. In a host build, where work has ended when its call
/// returns, it is always reached. One a purpose; must outlive the graphs that wait for it. Local.
class ExternalEvent {
 public:
  ExternalEvent() = default;
  ~ExternalEvent();
  ExternalEvent(const ExternalEvent&) = delete;
  ExternalEvent& operator=(const ExternalEvent&) = delete;

  /// The point behind all work of the stream so far, which nothing captures.
  void record(Stream& stream);
  /// Orders all later launches of the stream, captured ones too, behind the event. Does not block the host.
  void hold(Stream& stream);
  /// Whether the device has reached it; true before the first record. Never blocks.
  bool reached() const;

 private:
  void* handle_ = nullptr;  ///< made at first use
};

}  // namespace tessera
