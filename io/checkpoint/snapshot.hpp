#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/device/device.hpp"
#include "core/state/state_dict.hpp"

namespace tessera {

/// This rank's part of a state, copied to host memory, so that it can be written while training goes on. One per rank.
class Snapshot {
 public:
  /// Takes memory for states of this shape: page-locked, if there is a GPU. Local.
  Snapshot(Device& device, const StateDict& shape);

  /// Copies the state. On a GPU it only enqueues the copy on the stream of saves; the next update of the state waits
  /// for it. If no update would, this call waits itself. Local.
  void take(const StateDict& state);
  /// Whether the copy is complete. Never blocks. Local.
  bool complete() const { return copied_.reached(); }
  void wait() { device_.wait(copied_); }
  /// The copy: the state that was taken, with its ranges in host memory.
  const StateDict& state() const { return copy_; }
  /// This rank's digests, one per tensor, computed on the GPU before the copy; empty in host builds.
  std::span<const std::uint64_t> digests() const { return digests_; }
  std::int64_t bytes() const { return std::ssize(memory_); }

 private:
  Device& device_;
  std::span<std::byte> memory_;
  std::span<std::uint64_t> digests_;
  StateDict copy_;
  Event copied_;
};

}  // namespace tessera
