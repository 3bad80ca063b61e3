#pragma once
#include "core/params/access.hpp"
#include "core/params/usage.hpp"

namespace tessera {

/// Stands for weights and gradients in the dry pass: hands out addresses that are never followed and writes down in
/// which order weights are asked for and how often each gradient is written.
class UsageRecorder final : public WeightSource, public GradientSink {
 public:
  explicit UsageRecorder(const ParamRegistry& registry);

  Operand operand(Stream& stream, ParamId param, Side side) override;
  Gradient slot(ParamId param) override;
  void written(Stream& stream, ParamId param) override;

  const Usage& usage() const { return usage_; }

 private:
  const ParamRegistry& registry_;
  std::vector<bool> seen_;
  Usage usage_;
};

}  // namespace tessera
