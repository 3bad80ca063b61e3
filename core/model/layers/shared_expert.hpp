#pragma once
#include <optional>

#include "core/model/layers/mlp.hpp"

namespace tessera {

/// The expert of a mixture that every token visits: y = mlp(x), or sigmoid(g x) mlp(x) with a gate g [1,C]; an Mlp
/// without biases, [M,C] to [M,C]. Sources: DeepSeekMoE (Dai 2024), the gate Qwen2 (Yang 2024).
class SharedExpert {
 public:
  struct Saved {
    Mlp::Saved mlp;
    Tensor logits;  ///< [M,1], of the gate; empty without one
    Tensor answer;  ///< [M,C], the mlp's; without a gate nothing needs it
  };

  /// Registers `name`.gate_up or `name`.up, `name`.down and, with a gate, `name`.gate.
  SharedExpert(ParamRegistry& registry, const std::string& name, const GptShape& shape);

  Saved place(Arena& arena, std::int64_t tokens) const;
  void forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y = {}) const;
  void backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const;

 private:
  Accumulation accumulation_;
  DType type_, sum_type_;
  std::int64_t hidden_;
  Mlp mlp_;
  std::optional<ParamId> gate_;
};

}  // namespace tessera
