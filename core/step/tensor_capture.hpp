#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/config/sections/tensors.hpp"
#include "core/layout/param.hpp"
#include "core/model/factor_observer.hpp"
#include "core/state/state_dict.hpp"
#include "core/step/step_observer.hpp"
#include "core/step/step_plan.hpp"

namespace tessera {

/// A named tensor of a step, of which this rank holds some elements.
struct CapturedTensor {
  Shape shape;
  DType type = DType::f32;
  std::string format;  ///< of codes, scales and amax; empty: values
  struct Range {
    std::int64_t first;  ///< number of its first element, row-major
    std::string bytes;
  };
  std::vector<Range> ranges;
};

/// debug.tensors: copies tensors of a step to the host, without changing it. Names are
///
///     MATRIX/weight             the master before the step; of every parameter
///     MATRIX/weight_gradient    summed over the global batch, before clipping; of every parameter
///     MATRIX/activation         x of y = x W^T, [micro-batches, rows, in]
///     MATRIX/gradient           dy, [micro-batches, rows, out]
///     MATRIX/ROLE_SIDE/codes    the copy of that side as a product reads it, with /scales and /amax where the format
///                               has them; ROLE is weight, activation or gradient, SIDE rowwise or columnwise
///
/// Codes are made anew, from the same values and random numbers. So they are the same where a product computes with the
/// values that they stand for. A rank takes the micro-batches that it computes and the parameters that it owns. Rank 0
/// takes the weights' copies.
class TensorCapture final : public FactorObserver, public StepObserver {
 public:
  TensorCapture(const TensorsConfig& wanted, const StepSizes& sizes) : wanted_(wanted.names), sizes_(sizes) {}

  /// Before a step: forgets the one before, and takes the masters. Waits for the device. Local.
  void begin(Device& device, const StepPlan& plan, Stream& stream, const StateDict& masters);

  void begin_micro_batch() override {}
  void made(Stream& stream, const MadeFactor& factor) override;
  void read(Stream& stream, const ReadWeight& weight) override;
  void begun() override {}
  void reduced(Stream& stream, const Reduced& gradients) override;
  void stepped(Stream&) override {}

  /// This rank's tensors of the step, by name.
  std::map<std::string, CapturedTensor>& tensors() { return tensors_; }

 private:
  bool wants(const std::string& name) const;
  bool wants_copy(const std::string& copy) const;
  /// Takes element `index` of `count` along the first axis of a tensor.
  void take(Stream& stream, const std::string& name, std::int64_t index, std::int64_t count, const Tensor& values,
            std::string_view format = {});
  void take_copy(Stream& stream, const std::string& copy, std::int64_t index, std::int64_t count, FormatId format,
                 const Tensor& data, const Tensor& scales, const Tensor& amax);
  void take(Stream& stream, const StateDict& state, const std::string& what);

  std::vector<std::string> wanted_;
  StepSizes sizes_;
  Device* device_ = nullptr;
  const StepPlan* plan_ = nullptr;
  std::map<std::string, CapturedTensor> tensors_;
  std::set<std::pair<std::string, std::int64_t>> seen_;  ///< factors, by first row; and weights' copies
};

/// Patterns that are the name of no tensor of a model. Pure.
std::vector<std::string> patterns_of_nothing(std::vector<std::string> patterns, const ParamRegistry& registry);

}  // namespace tessera
