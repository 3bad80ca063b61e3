#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/control.hpp"
#include "core/device/device.hpp"
#include "core/state/state_dict.hpp"
#include "io/checkpoint/fault.hpp"
#include "io/checkpoint/structure.hpp"

namespace tessera {

/// Writes checkpoints of one run, complete or not at all, in the form of FORMAT.md. One a rank.
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
  void sum_digests(Save& save);
  void create(Save& save, const char* name);
  void guard(Save& save);
  void payload(Save& save);
  void refuse_non_finite(Save& save);
  void write_tables(Save& save);
  void describe(Save& save, CheckpointFile& out);
  void close(CheckpointFile& out);
  void complete(const Save& save);
  void announce(const Save& save);
  void begin(fault::Phase phase);
  /// What one rank throws in its work, all throw.
  template <class Work>
  void vote(const Work& work);
  template <class Work>
  void phase(fault::Phase phase, const Work& work);
  /// A phase in which HDF5 waits for the other ranks, where no watchdog names one that does not come: all come first.
  template <class Work>
  void together(fault::Phase phase, const Work& work);

  Device& device_;
  Stream& stream_;
  Control& control_;
  std::vector<std::byte> block_;
};

}  // namespace tessera
