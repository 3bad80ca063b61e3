#pragma once
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/device/device.hpp"
#include "core/device/shared_pages.hpp"
#include "core/layout/ranks.hpp"

namespace tessera {

/// Shared memory of all ranks of a group on one host, mapped into this process.
class HostMemory {
 public:
  /// Gathers bytes of every rank, as many from each, in rank order. Collective over the group.
  using Gather = std::function<std::vector<std::byte>(std::span<const std::byte>)>;

  /// Opens what the ranks give as `memory`, and overwrites its begin. Collective over the group.
  HostMemory(const RankIn& place, const SharedMemory& memory, const Gather& gather);

  /// By rank; empty on all ranks if one cannot open another's, as one on another host.
  const std::vector<std::byte*>& addresses() const { return addresses_; }

 private:
  std::vector<SharedPages> others_;
  std::vector<std::byte*> addresses_;
};

}  // namespace tessera
