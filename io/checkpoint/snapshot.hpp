#pragma once
#include <cstddef>
#include <span>

#include "core/device/device.hpp"
#include "core/state/state_dict.hpp"

namespace tessera {

/// This rank's part of a state in host memory, which stays as it is while training goes on. One a rank.
class Snapshot {
 public:
  /// Takes memory for states of this shape, page-locked where there is a GPU. Local.
  Snapshot(Device& device, const StateDict& shape);

  /// Copies the state. Its digests are taken on the device, before the copy. On a GPU it only enqueues, on the stream
  /// of saves, and the state's next update waits for the copy; a state that nobody updates so is waited for. Local.
  void take(const StateDict& state);
  /// Whether all bytes are there. Never blocks. Local.
  bool complete() const { return copied_.reached(); }
  void wait() { device_.wait(copied_); }
  /// The copy: as what was taken, its ranges in host memory; digests are the device's.
  const StateDict& state() const { return copy_; }
  std::int64_t bytes() const { return std::ssize(memory_); }

 private:
  Device& device_;
  std::span<std::byte> memory_;
  StateDict copy_;
  Event copied_;
};

}  // namespace tessera
