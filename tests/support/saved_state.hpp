#pragma once
#include <string>

#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/writer.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/self_control.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera::test {

/// A state of one rank, with fp32 tensors of uniform values, and its own run directory with a checkpoint of step 7.
class SavedState {
 public:
  void add(const std::string& slot, const std::string& name, Shape shape, Role role, const std::string& tied_to = "") {
    const Tensor values =
        on_device(device_, uniform<float>(shape.elements(), 100 + static_cast<std::uint64_t>(state_.tensors.size())));
    state_.tensors.push_back({slot, name, shape, DType::f32, role, {{0, values}}});
    state_.tensors.back().tied_to = tied_to;
  }
  /// Saves the state; call it once, after adding all tensors.
  void save(ExpertWeights experts) {
    state_.counters.step = 7;
    state_.counters.rules = {{"t", std::int64_t{6}}, {"beta1_power", 0.53}, {"beta2_power", 0.74}};
    state_.digests = device_.allocate(Category::activations, DType::u64, {std::ssize(state_.tensors)});
    Origin origin;
    origin.deck = "run: {name: small}\n";
    origin.experts = experts;
    SelfControl control;
    CheckpointWriter(device_, control).save(run(), state_, origin);
  }

  const std::filesystem::path& run() const { return temporary_.path(); }
  std::filesystem::path folder() const { return run() / step_folder(7); }

 private:
  TemporaryFolder temporary_;
  Device device_;
  StateDict state_;
};

}  // namespace tessera::test
