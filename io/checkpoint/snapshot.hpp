#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/device/device.hpp"
#include "core/state/state_dict.hpp"

namespace tessera {

/// This rank's part of a state in host memory, which stays as it is while training goes on. One a rank.
class Snapshot {
 public:
  /// Takes memory for states of this shape, page-locked where there is a GPU. Local.
  Snapshot(Device& device, const StateDict& shape);

  /// Copies the state. On a GPU it only enqueues the copy, on the stream of saves; the state's next update waits for
  /// it, and where nothing would, this call waits itself. Local.
  void take(const StateDict& state);
  /// Whether all bytes are there. Never blocks. Local.
  bool complete() const { return copied_.reached(); }
  void wait() { device_.wait(copied_); }
  /// The copy: as what was taken, its ranges in host memory.
  const StateDict& state() const { return copy_; }
  /// This rank's, one a tensor, of the GPU's memory before the copy; none where the copy has not left the host.
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
