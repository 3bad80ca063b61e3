#include "core/model/layers/block.hpp"

namespace tessera {
namespace {

Branch<Attention> attention_branch(ParamRegistry& registry, const std::string& name, const GptShape& shape) {
  Recompute<NormLayer> norm(shape.keep.norm, NormLayer(registry, name + ".norm1", shape));
  return {std::move(norm), {shape.keep.attention, Attention(registry, name + ".attention", shape)}};
}

std::string name_of(std::int64_t number) { return "layers." + std::to_string(number); }

Branch<FeedForward> ffn_branch(ParamRegistry& registry, std::int64_t number, const GptShape& shape) {
  const std::string name = name_of(number);
  registry.begin_module();
  Recompute<NormLayer> norm(shape.keep.norm, NormLayer(registry, name + ".norm2", shape));
  if (shape.has_experts(number))
    return {std::move(norm),
            {shape.keep.moe, FeedForward(Moe(registry, name + ".moe", shape, shape.moe->blocks.among(number)))}};
  return {std::move(norm), {shape.keep.mlp, FeedForward(Mlp(registry, name + ".mlp", shape))}};
}

}  // namespace

Block::Block(ParamRegistry& registry, std::int64_t number, const GptShape& shape)
    : width_(shape.hidden),
      type_(shape.compute),
      attention_(attention_branch(registry, name_of(number), shape)),
      ffn_(ffn_branch(registry, number, shape)) {}

Block::Saved Block::place(Arena& arena, std::int64_t tokens) const {
  Saved saved;
  saved.attention = attention_.place(arena, tokens);
  saved.middle = arena.keep(type_, {tokens, width_});
  saved.ffn = ffn_.place(arena, tokens);
  return saved;
}

void Block::forward(const Call& call, const Residual& x, const Saved& saved, const Tensor& y) const {
  const Arena::Frame frame(call.arena);
  // y's memory holds the attention's output until y is written; a forward without y takes a temporary.
  const Tensor attended = y ? y : call.arena.temp(type_, x.sum.shape);
  attention_.forward(call, x, saved.attention, attended);
  ffn_.forward(call, {x.sum, attended, saved.middle}, saved.ffn, y);
}

void Block::backward(const Call& call, const Tensor& dx, const Tensor& x, const Saved& saved) const {
  ffn_.backward(call, dx, saved.middle, saved.ffn);
  Call without_fault = call;
  without_fault.fault.reset();
  attention_.backward(without_fault, dx, x, saved.attention);
}

}  // namespace tessera
