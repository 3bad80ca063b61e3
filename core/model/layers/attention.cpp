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
    : one_{1, shape.seq_len, shape.heads, shape.kv_heads, shape.head_dim, shape.attention_order},
      type_(shape.compute),
      sum_type_(shape.sum_type()),
      qkv_(registry, name + ".qkv",
           {shape.hidden, one_.columns(), initial_deviation, shape.bias, shape.accumulation, shape.recipe,
            parts_of(one_)}),
      out_(registry, name + ".out",
           {one_.heads * one_.head_dim, shape.hidden, residual_deviation(shape.layers), shape.bias,
            shape.accumulation, shape.recipe, {}}) {}

AttentionShape Attention::shape_of(std::int64_t tokens) const {
  AttentionShape shape = one_;
  shape.sequences = tokens / one_.length;
  return shape;
}

Attention::Saved Attention::place(Arena& arena, std::int64_t tokens) const {
  const AttentionShape shape = shape_of(tokens);
  Saved saved;
  saved.qkv = arena.keep(type_, {tokens, shape.columns()});
  saved.lse = arena.keep(sum_type_, {shape.sequences, shape.heads, shape.length});
  saved.out.x = arena.keep(type_, {tokens, shape.heads * shape.head_dim});
  return saved;
}

void Attention::forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y) const {
  const AttentionShape shape = shape_of(x.rows());
  qkv_.forward(call, saved.qkv, x);
  if (call.rotation) rotary(call.stream, shape, saved.qkv, call.rotation, Rotation::forward);
  const Arena::Frame frame(call.arena);
  attention_forward(call.stream, call.arena, shape, saved.out.x, saved.lse, saved.qkv);
  if (y) out_.forward(call, y, saved.out.x);
}

void Attention::backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         const Saved& saved) const {
  const AttentionShape shape = shape_of(x.rows());
  const Arena::Frame frame(call.arena);
  const Tensor dqkv = call.arena.temp(type_, saved.qkv.shape);
  {
    const Arena::Frame inner(call.arena);
    const Tensor dout = call.arena.temp(type_, saved.out.x.shape);
    out_.backward(call, dout, dy, saved.out);
    attention_backward(call.stream, call.arena, shape, dqkv, dout, saved.qkv, saved.out.x, saved.lse);
  }
  if (call.rotation) rotary(call.stream, shape, dqkv, call.rotation, Rotation::inverse);
  qkv_.backward(call, dx, dqkv, {x});
}

}  // namespace tessera
