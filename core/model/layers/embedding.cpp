#include "core/model/layers/embedding.hpp"

#include "kernels/embedding/embedding.hpp"

namespace tessera {

ParamId add_vocabulary(ParamRegistry& registry, const std::string& name, const GptShape& shape, Role role) {
  return registry.add({name,
                       {shape.padded_vocabulary(), shape.hidden},
                       1,
                       role,
                       normal_start(initial_deviation),
                       {name, {shape.vocabulary, shape.hidden}, 0}});
}

Embedding::Embedding(ParamRegistry& registry, const GptShape& shape)
    : tokens_(add_vocabulary(registry, "embed.tokens", shape, Role::embedding)) {
  if (shape.position == Position::learned)
    positions_ = add_whole(registry, "embed.positions", {shape.seq_len, shape.hidden}, Role::position,
                           normal_start(initial_deviation));
}

void Embedding::forward(const Call& call, const Tensor& x, const Tensor& ids) const {
  const Use tokens = call.weights.operand(call.stream, tokens_, Side::rowwise);
  const Use positions = use_of(call, positions_);
  const Tensor& table = positions->data;
  embedding_forward(call.stream, x, ids,
                    {tokens->data, table && call.cache ? table.row_range(call.position, x.rows()) : table},
                    table ? call.positions : Tensor{});
}

void Embedding::backward(const Call& call, const Tensor& dx, const Tensor& ids) const {
  if (positions_)
    contribute(call, *positions_, [&](const Gradient& d) {
      if (call.positions) embedding_token_gradient(call.stream, call.arena, d, call.positions, dx);
      else embedding_position_gradient(call.stream, d, dx);
    });
  contribute(call, tokens_, [&](const Gradient& d) { embedding_token_gradient(call.stream, call.arena, d, ids, dx); });
}

}  // namespace tessera
