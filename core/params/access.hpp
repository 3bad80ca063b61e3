#pragma once
#include <utility>

#include "core/layout/param.hpp"
#include "kernels/base/stream.hpp"
#include "kernels/gemm/operand.hpp"

namespace tessera {

class Use;

/// The way to a weight. Implemented by Weights (which walks the group to Ready) and by the plan's recorder.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The current value as an operand of products, [out, in] (vectors: [n]; grouped: all members). Orders `stream`
  /// behind the all-gather and begins the next group's (prefetch). Collective over the parameter's process group in
  /// effect: every rank asks in the same order.
  virtual Use operand(Stream& stream, ParamId param, Side side) = 0;

 private:
  friend class Use;
  /// A Use has ended.
  virtual void ended(ParamId) noexcept {}
};

/// An operand while it is in use: its end is the operand's last use on the stream. Move-only. An empty one stands for a
/// parameter that a layer lacks, and holds an empty operand.
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

/// The way to a gradient. Implemented by the Accumulating token and by the plan's recorder.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Where the next contribution to `param` goes; beta is 0 on the step's first.
  virtual Gradient slot(ParamId param) = 0;
  /// Says that the contribution given out by slot() has been written on `stream`: on the last one of the step the
  /// group's reduce-scatter may begin.
  virtual void written(Stream& stream, ParamId param) = 0;
};

}  // namespace tessera
