#include "core/model/layers/attention.hpp"


namespace tessera {
namespace {

/// Query, key and value rows of the projection.
Shape parts_of(const AttentionShape& shape) {
  const std::int64_t keys = shape.kv_heads * shape.head_dim;
  return {shape.heads * shape.head_dim, keys, keys};
}

}  // namespace

Attention::Attention(ParamRegistry& registry, const std::string& name, const GptShape& shape)
    : one_{1, shape.seq_len, shape.heads, shape.kv_heads, shape.head_dim},
      codes_(shape.keep.codes),
      type_(shape.compute),
      sum_type_(shape.sum_type()),
      eps_(shape.eps),
      qkv_(registry, name + ".qkv",
           {shape.hidden, one_.columns(), initial_deviation, shape.bias || shape.qkv_bias, shape.accumulation,
            MatrixName::attention_qkv, parts_of(one_)}),
      norms_(add_norms(registry, name, shape)),
      out_(registry, name + ".out",
           {one_.heads * one_.head_dim, shape.hidden, residual_deviation(shape.layers), shape.bias,
            shape.accumulation, MatrixName::attention_out, {}}) {}

std::optional<Attention::HeadNorms> Attention::add_norms(ParamRegistry& registry, const std::string& name,
                                                         const GptShape& shape) {
  if (!shape.qk_norm) return std::nullopt;
  const QkNormOver over = shape.qk_norm_over;
  const auto add = [&](const char* which, std::int64_t heads) {
    const std::int64_t width = over == QkNormOver::head ? shape.head_dim : heads * shape.head_dim;
    return add_whole(registry, name + which, {width}, Role::norm, {Start::Kind::one, 0});
  };
  const ParamId q = add(".q_norm.weight", shape.heads);
  return HeadNorms{q, add(".k_norm.weight", shape.kv_heads), over};
}

/// Whole sequences, or a part of one.
AttentionShape Attention::shape_of(std::int64_t tokens) const {
  AttentionShape shape = one_;
  shape.length = std::min(tokens, one_.length);
  shape.sequences = tokens / shape.length;
  return shape;
}

Attention::Saved Attention::place(Arena& arena, std::int64_t tokens) const {
  const AttentionShape shape = shape_of(tokens);
  Saved saved;
  if (norms_) {
    saved.projected = arena.keep(type_, {tokens, shape.columns()});
    saved.rstd = arena.keep(sum_type_, {tokens, qk_norms(shape, norms_->over)});
  }
  saved.qkv = arena.keep(type_, {tokens, shape.columns()});
  saved.lse = arena.keep(sum_type_, {shape.sequences, shape.heads, shape.length});
  saved.out = arena.keep(type_, {tokens, shape.heads * shape.head_dim});
  saved.of_qkv = qkv_.place(arena, tokens, Values::passing);
  if (codes_ == Keep::all) saved.of_out = out_.place(arena, tokens, Values::kept);
  return saved;
}

void Attention::forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y) const {
  const Region region(call.stream, RegionName::attention);
  const AttentionShape shape = shape_of(x.rows());
  qkv_.forward(call, norms_ ? saved.projected : saved.qkv, x, saved.of_qkv);
  if (norms_) {
    const Use q = call.weights.operand(call.stream, norms_->q, Side::rowwise);
    const Use k = call.weights.operand(call.stream, norms_->k, Side::rowwise);
    head_norm_forward(call.stream, shape, {saved.rstd, saved.projected, q->data, k->data, eps_}, saved.qkv);
  }
  if (call.rotation) rotary(call.stream, shape, saved.qkv, call.rotation, Rotation::forward, call.positions);
  const Arena::Frame frame(call.arena);
  if (call.cache)
    attention_extend(call.stream, call.arena, shape, saved.out, call.cache, saved.qkv, call.position);
  else
    attention_forward(call.stream, call.arena, shape, {saved.out, saved.lse, saved.qkv, call.positions});
  out_.forward(call, y, saved.out, saved.of_out);
}

void Attention::backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         const Saved& saved) const {
  const Region region(call.stream, RegionName::attention);
  const AttentionShape shape = shape_of(x.rows());
  const Arena::Frame frame(call.arena);
  const Tensor dqkv = call.arena.temp(type_, saved.qkv.shape);
  {
    const Arena::Frame inner(call.arena);
    const Tensor dout = call.arena.temp(type_, saved.out.shape);
    out_.backward(call, dout, dy, saved.out, saved.of_out);
    attention_backward(call.stream, call.arena, shape, {saved.out, saved.lse, saved.qkv, call.positions}, dqkv, dout);
  }
  if (call.rotation) rotary(call.stream, shape, dqkv, call.rotation, Rotation::inverse, call.positions);
  if (norms_) norm_backward(call, dqkv, saved);
  qkv_.backward(call, dx, dqkv, x, saved.of_qkv);
}

void Attention::norm_backward(const Call& call, const Tensor& dqkv, const Saved& saved) const {
  const AttentionShape shape = shape_of(dqkv.rows());
  contribute(call, norms_->q, [&](const Gradient& dq) {
    contribute(call, norms_->k, [&](const Gradient& dk) {
      head_norm_weight_gradients(call.stream, call.arena, shape, {saved.rstd, saved.projected}, dqkv, dq, dk);
    });
  });
  const Use q = call.weights.operand(call.stream, norms_->q, Side::rowwise);
  const Use k = call.weights.operand(call.stream, norms_->k, Side::rowwise);
  head_norm_backward(call.stream, shape, {saved.rstd, saved.projected, q->data, k->data}, dqkv);
}

}  // namespace tessera
