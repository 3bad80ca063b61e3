#pragma once
#include <utility>

#include "core/layout/param.hpp"
#include "kernels/base/stream.hpp"
#include "kernels/gemm/operand.hpp"

namespace tessera {

class Use;

/// Gives layers their weights. Implemented by ParamSync, which all-gathers on demand, and by the plan's recorder.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The current value as an operand of products, [out, in] (vectors: [n]; grouped: all members). Orders `stream`
  /// behind the all-gather of its group and begins the next group's (prefetch). Every rank must ask in the same order.
  /// Collective over the parameter's process group.
  virtual Use operand(Stream& stream, ParamId param, Side side) = 0;

 private:
  friend class Use;
  /// Called at the end of a Use.
  virtual void ended(ParamId) noexcept {}
};

/// An operand in use; destroy it behind the operand's last use on the stream. Move-only. An empty one, with an empty
/// operand, stands for a parameter that a layer lacks (a bias).
class [[nodiscard]] Use {
 public:
  Use() = default;
  Use(WeightSource& source, ParamId param, const Operand& operand)
      : source_(&source), param_(param), operand_(operand) {}
  Use(Use&& other) noexcept
      : source_(std::exchange(other.source_, nullptr)), param_(other.param_), operand_(other.operand_) {}
  Use& operator=(Use&&) = delete;
  ~Use() {
    if (source_) source_->ended(param_);
  }

  const Operand& operator*() const { return operand_; }
  const Operand* operator->() const { return &operand_; }

 private:
  WeightSource* source_ = nullptr;
  ParamId param_;
  Operand operand_;
};

/// Takes gradients from layers. Implemented by the Accumulating token and by the plan's recorder.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Where to accumulate the next contribution to `param`'s gradient; beta is 0 on the step's first.
  virtual Gradient slot(ParamId param) = 0;
  /// To be called when the contribution given out by slot() has been written on `stream`. After the last contribution
  /// of a step the group's reduce-scatter may begin.
  virtual void written(Stream& stream, ParamId param) = 0;
};

}  // namespace tessera
