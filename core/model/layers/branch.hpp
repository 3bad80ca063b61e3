#pragma once
#include "core/model/layers/norm.hpp"
#include "core/model/layers/recompute.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/random/random.hpp"

namespace tessera {

/// Puts the value of a call's fault, if it has one, in the first element of a gradient while it lives.
class Spoiled {
 public:
  Spoiled(const Call& call, const Tensor& gradient) : stream_(call.stream) {
    if (!call.fault) return;
    first_ = gradient.flat(0, 1);
    before_ = {stream_.workspace("fault", first_.bytes()), first_.type, {1}};
    copy(stream_, before_, first_);
    fill(stream_, first_, double{*call.fault});
  }
  ~Spoiled() {
    if (first_) copy(stream_, first_, before_);
  }
  Spoiled(const Spoiled&) = delete;
  Spoiled& operator=(const Spoiled&) = delete;

 private:
  Stream& stream_;
  Tensor first_, before_;
};

/// y = inner(norm(residual stream)): what is added to the stream by the norm that follows.
template <class Inner>
class Branch {
 public:
  struct Saved {
    typename Recompute<NormLayer>::Saved norm;
    typename Recompute<Inner>::Saved inner;
  };

  Branch(Recompute<NormLayer> norm, Recompute<Inner> inner) : norm_(std::move(norm)), inner_(std::move(inner)) {}

  Saved place(Arena& arena, std::int64_t tokens) const {
    const typename Recompute<Inner>::Saved inner = inner_.place(arena, tokens);
    const bool read = !inner || Inner::reads_input(*inner);
    return {norm_.place(arena, tokens, read ? Values::kept : Values::passing), inner};
  }

  /// y may be the stream's branch, which the norm has consumed by then.
  void forward(const Call& call, const Residual& x, const Saved& saved, const Tensor& y = {}) const {
    const Arena::Frame frame(call.arena);
    typename Recompute<NormLayer>::Saved kept = saved.norm;
    if (kept && !kept->y) kept->y = call.arena.temp(kept->y.type, kept->y.shape);
    const NormLayer::Saved normed = norm_.forward(call, x, kept);
    inner_.forward(call, normed.y, saved.inner, y);
  }

  /// dx [M,C], the gradient of the stream after this branch was added, becomes that before it. x is the stream's sum.
  void backward(const Call& call, const Tensor& dx, const Tensor& x, const Saved& saved) const {
    const Arena::Frame frame(call.arena);
    const NormLayer::Saved normed = norm_.again(call, Residual::whole(x), saved.norm);
    const Tensor dnormed = call.arena.temp(dx.type, dx.shape);
    {
      const Arena::Frame inside(call.arena);
      const typename Inner::Saved again = inner_.again(call, normed.y, saved.inner);
      const Spoiled spoiled(call, dx);
      inner_.layer().backward(call, dnormed, dx, normed.y, again);
    }
    norm_.layer().backward(call, dx, dnormed, x, normed);
  }

 private:
  Recompute<NormLayer> norm_;
  Recompute<Inner> inner_;
};

}  // namespace tessera
