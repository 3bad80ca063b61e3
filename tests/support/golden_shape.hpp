#pragma once
#include <nlohmann/json.hpp>

#include "core/config/choices.hpp"
#include "core/model/shape.hpp"

namespace tessera::test {

/// Shape of a golden's model without its experts.
inline GptShape dense_shape(const nlohmann::json& model, DType compute) {
  GptShape shape;
  shape.layers = model.at("layers");
  shape.hidden = model.at("hidden");
  shape.heads = model.at("heads");
  shape.kv_heads = model.at("kv_heads");
  shape.head_dim = model.at("head_dim");
  shape.ffn = model.at("ffn");
  shape.seq_len = model.at("seq_len");
  shape.vocabulary = model.at("vocabulary");
  shape.norm = choice_named<Norm>(model.at("norm").get<std::string>()).value();
  shape.position = choice_named<Position>(model.at("position").get<std::string>()).value();
  shape.activation = choice_named<Activation>(model.at("activation").get<std::string>()).value();
  shape.rope_base = model.at("rope_base");
  shape.bias = model.at("bias");
  shape.tied_head = model.at("tied_head");
  shape.compute = compute;
  return shape;
}

}  // namespace tessera::test
