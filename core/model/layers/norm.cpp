#include "core/model/layers/norm.hpp"

namespace tessera {

NormLayer::NormLayer(ParamRegistry& registry, const std::string& name, const GptShape& shape)
    : kind_(shape.norm),
      width_(shape.hidden),
      eps_(shape.eps),
      type_(shape.compute),
      sum_type_(shape.sum_type()),
      weight_(add_whole(registry, name + ".weight", {width_}, Role::norm, {Start::Kind::one, 0})) {
  if (shape.bias && kind_ == Norm::layer) bias_ = add_whole(registry, name + ".bias", {width_}, Role::bias, {});
}

NormLayer::Saved NormLayer::place(Arena& arena, std::int64_t tokens, Values output) const {
  Saved saved;
  if (kind_ == Norm::layer) saved.mean = arena.keep(sum_type_, {tokens});
  saved.rstd = arena.keep(sum_type_, {tokens});
  saved.y = {nullptr, type_, {tokens, width_}};
  if (output == Values::kept) saved.y = arena.keep(type_, saved.y.shape);
  return saved;
}

void NormLayer::forward(const Call& call, const Residual& x, const Saved& saved) const {
  const Region region(call.stream, RegionName::norms);
  const Use weight = call.weights.operand(call.stream, weight_, Side::rowwise);
  const Use bias = use_of(call, bias_);
  norm_forward(call.stream, kind_,
               {.y = saved.y,
                .residual_out = x.sum,
                .mean = saved.mean,
                .rstd = saved.rstd,
                .x = x.x,
                .branch = x.branch,
                .weight = weight->data,
                .bias = bias->data,
                .eps = eps_});
}

void NormLayer::backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         const Saved& saved) const {
  const Region region(call.stream, RegionName::norms);
  const Use weight = call.weights.operand(call.stream, weight_, Side::rowwise);
  const auto gradients = [&](const Gradient& dweight, const Gradient& dbias) {
    norm_gradients(
        call.stream, call.arena, kind_, dweight, dbias,
        {.dx = dx, .dy = dy, .x = x, .mean = saved.mean, .rstd = saved.rstd, .weight = weight->data});
  };
  contribute(call, weight_, [&](const Gradient& dweight) {
    if (!bias_) return gradients(dweight, {});
    contribute(call, *bias_, [&](const Gradient& dbias) { gradients(dweight, dbias); });
  });
}

}  // namespace tessera
