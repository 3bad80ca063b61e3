#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/control.hpp"
#include "core/device/device.hpp"
#include "core/state/state_dict.hpp"
#include "io/checkpoint/manifest.hpp"

namespace tessera {

/// Writes checkpoints of one run, complete or not at all (checkpoint.md, sections 3 and 4). One a rank.
class CheckpointWriter {
 public:
  /// Keeps one block on the host and none on the device.
  CheckpointWriter(Device& device, Control& control);

  /// Saves `state` as `run`/step_<N>; returns its content digest. Waits for the device and the disk. When any rank
  /// fails, all throw the same Error, nothing of this save remains and every older checkpoint does. Collective.
  std::string save(const std::filesystem::path& run, const StateDict& state, const Origin& origin);

 private:
  struct Save;
  void prepare(Save& save);
  void digest_all(Save& save);
  void create(Save& save);
  void guard(Save& save);
  void payload(Save& save);
  void finish(Save& save);
  void commit(Save& save);
  /// Runs one phase on every rank, then the vote: what one rank throws, all throw.
  template <class Phase>
  void phase(const Phase& run);

  Device& device_;
  Stream& stream_;
  Control& control_;
  std::vector<std::byte> block_;
};

}  // namespace tessera
