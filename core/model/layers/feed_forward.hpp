#pragma once
#include <variant>

#include "core/model/layers/mlp.hpp"
#include "core/model/layers/moe.hpp"

namespace tessera {

/// The second half of a block: dense, or a mixture of experts.
class FeedForward {
 public:
  using Saved = std::variant<Mlp::Saved, Moe::Saved>;

  explicit FeedForward(Mlp layer) : layer_(std::move(layer)) {}
  explicit FeedForward(Moe layer) : layer_(std::move(layer)) {}

  Saved place(Arena& arena, std::int64_t tokens) const {
    return std::visit([&](const auto& layer) { return Saved(layer.place(arena, tokens)); }, layer_);
  }
  static bool reads_input(const Saved& saved) {
    if (const Mlp::Saved* const dense = std::get_if<Mlp::Saved>(&saved)) return Mlp::reads_input(*dense);
    return Moe::reads_input(std::get<Moe::Saved>(saved));
  }
  void forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y = {}) const {
    std::visit([&](const auto& layer) { layer.forward(call, x, of(layer, saved), y); }, layer_);
  }
  void backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const {
    std::visit([&](const auto& layer) { layer.backward(call, dx, dy, x, of(layer, saved)); }, layer_);
  }

 private:
  template <class Layer>
  static const typename Layer::Saved& of(const Layer&, const Saved& saved) {
    return std::get<typename Layer::Saved>(saved);
  }

  std::variant<Mlp, Moe> layer_;
};

}  // namespace tessera
