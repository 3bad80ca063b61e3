#pragma once
#include <optional>

#include "core/model/layers/call.hpp"
#include "core/model/shape.hpp"

namespace tessera {

/// A layer of which either everything that backward needs is kept, or nothing but the input, from which backward finds
/// it again. These are the same kernels on the same operands, so the same bits. The only place that knows of
/// recomputation.
template <class Layer>
class Recompute {
 public:
  using Saved = std::optional<typename Layer::Saved>;

  Recompute(Keep keep, Layer layer) : keep_(keep), layer_(std::move(layer)) {}

  /// `how`: what the layer's place() takes further.
  template <class... How>
  Saved place(Arena& arena, std::int64_t tokens, const How&... how) const {
    return keep_ == Keep::all ? Saved(layer_.place(arena, tokens, how...)) : Saved();
  }

  /// Runs the layer's forward and returns what it saved. If that is not kept it ends with the caller's Frame.
  template <class Input, class... Output>
  typename Layer::Saved forward(const Call& call, const Input& x, const Saved& saved, const Output&... y) const {
    const typename Layer::Saved now = saved ? *saved : layer_.place(call.arena, x.rows());
    Call of_layer = call;
    if (!saved && sizeof...(y) > 0) of_layer.gradients = nullptr;  // no backward follows this forward
    layer_.forward(of_layer, x, now, y...);
    return now;
  }

  /// What backward needs: kept, or computed again into the caller's Frame.
  template <class Input>
  typename Layer::Saved again(const Call& call, const Input& x, const Saved& saved) const {
    return saved ? *saved : forward(call, x, saved);
  }

  const Layer& layer() const { return layer_; }

 private:
  Keep keep_;
  Layer layer_;
};

}  // namespace tessera
