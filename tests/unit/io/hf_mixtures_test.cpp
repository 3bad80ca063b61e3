#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/convert/hf_config.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera::test {
namespace {

using nlohmann::json;

/// A mixture of small sizes that `type` describes, with `change` on top.
ModelConfig read(const std::string& type, const json& change = json::object()) {
  json config = {{"model_type", type},       {"vocab_size", 61},         {"hidden_size", 24},
                 {"num_hidden_layers", 4},   {"num_attention_heads", 3}, {"num_key_value_heads", 1},
                 {"num_experts_per_tok", 2}, {"max_position_embeddings", 12}};
  config[type == "glm4_moe" || type == "dots1" ? "n_routed_experts" : "num_experts"] = 8;
  config.merge_patch(change);
  const TemporaryFolder folder;
  return read_hf_config(folder.write("config.json", config.dump())).config.model;
}

/// The key that a configuration is refused by, or nothing.
std::string refused(const std::string& type, const json& change) {
  try {
    read(type, change);
    return "";
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::size_t begin = text.find("config.json: ") + 13;
    return text.substr(begin, text.find(':', begin) - begin);
  }
}

TEST(HfMixtures, AbsentKeysHaveTransformersDefaults) {
  const ModelConfig glm = read("glm4_moe"), dots = read("dots1"), qwen2 = read("qwen2_moe"), qwen3 = read("qwen3_moe"),
                    olmoe = read("olmoe");
  EXPECT_EQ(glm.rope_dim, 4) << "half a head";
  EXPECT_EQ(dots.rope_dim, 8);
  EXPECT_EQ(glm.norm_eps, 1e-5);
  EXPECT_EQ(dots.norm_eps, 1e-6);
  EXPECT_EQ(olmoe.norm_eps, 1e-5);
  EXPECT_TRUE(glm.moe->renormalize.get() && !dots.moe->renormalize.get() && !qwen3.moe->renormalize.get());
  EXPECT_EQ(glm.moe->first_dense, 1);
  EXPECT_EQ(dots.moe->first_dense, 0);
  EXPECT_EQ(glm.moe->shared_ffn, 1408);
  EXPECT_EQ(dots.moe->shared_ffn, 0);
  EXPECT_TRUE(qwen2.qkv_bias && qwen2.moe->shared_gate && !qwen2.qk_norm);
  EXPECT_TRUE(qwen3.qk_norm && qwen3.qk_norm_over == QkNormOver::head && !qwen3.qkv_bias);
  EXPECT_TRUE(olmoe.qk_norm && olmoe.qk_norm_over == QkNormOver::width);
  const json within = {{"rope_parameters", {{"rope_theta", 5e5}, {"partial_rotary_factor", 0.25}}}};
  EXPECT_EQ(read("glm4_moe", within).rope_dim, 2);
  EXPECT_EQ(read("glm4_moe", {{"partial_rotary_factor", 1.0}}).rope_dim, 8);
}

TEST(HfMixtures, DenseLayersAreTheFirstOnesAndThoseBetween) {
  // mlp_only_layers, decoder_sparse_step; first_dense, or -1: refused
  struct Row {
    json dense;
    std::int64_t step, first;
  };
  for (const Row& row : {Row{{}, 1, 0}, {json::array(), 2, 0}, {{0}, 1, 1}, {{1, 0}, 1, 2}, {{0, 2}, 2, 1}, {{2}, 2, 0},
                         {{3}, 1, -1}, {{0, 2}, 1, -1}, {{1}, 2, -1}, {{"0"}, 1, 0}}) {
    const json change = {{"mlp_only_layers", row.dense}, {"decoder_sparse_step", row.step}};
    const std::string key = refused("qwen3_moe", change);
    EXPECT_EQ(key, row.first < 0 ? "mlp_only_layers" : "") << change;
    if (!key.empty()) continue;
    const MoeConfig moe = *read("qwen3_moe", change).moe;
    EXPECT_EQ(moe.first_dense, row.first) << change;
    EXPECT_EQ(moe.every, row.step);
  }
}

TEST(HfMixtures, WhatNoModelHereDoesIsRefusedByItsKey) {
  EXPECT_EQ(refused("olmoe", {{"clip_qkv", 8.0}}), "clip_qkv");
  for (const char* type : {"olmoe", "qwen3_moe", "dots1"})
    EXPECT_EQ(refused(type, {{"attention_bias", true}}), "attention_bias") << type;
  EXPECT_EQ(refused("glm4_moe", {{"attention_bias", true}}), "");
  EXPECT_EQ(refused("glm4_moe", {{"partial_rotary_factor", 0.0}}), "partial_rotary_factor");
  EXPECT_EQ(refused("glm4_moe", {{"partial_rotary_factor", 0.4}}), "model.rope_dim") << "3 of 8";
  EXPECT_EQ(refused("glm4_moe", {{"n_group", 3}}), "model.moe.groups");
  EXPECT_EQ(refused("glm4_moe", {{"first_k_dense_replace", 4}}), "model.moe.first_dense");
  EXPECT_EQ(refused("qwen2_moe", {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor");
  EXPECT_EQ(refused("qwen3_moe", {{"layer_types", {"linear_attention"}}}), "layer_types");
  EXPECT_EQ(refused("ernie4_5_moe", json::object()), "model_type");
  // A window that some layers of dots.llm1 have shortens the sequences; here they are no longer than it.
  EXPECT_EQ(read("dots1", {{"max_window_layers", 1}, {"sliding_window", 7}}).seq_len, 7);
  EXPECT_EQ(read("dots1", {{"max_window_layers", 4}, {"sliding_window", 7}}).seq_len, 12);
}

TEST(HfMixtures, AModelGoesToTheTypeThatHasIt) {
  const auto written = [](ModelConfig model, const auto& change) -> std::string {
    change(model);
    RunConfig config;
    config.model = model;
    derive(config);
    try {
      const Family family = family_of(config.model, "deck");
      const auto text = json::parse(hf_config_text(family, config.model, DType::f32, nlohmann::ordered_json::object()));
      const TemporaryFolder folder;
      EXPECT_EQ(read_hf_config(folder.write("config.json", text.dump())).config.model, config.model) << text;
      return text.at("model_type");
    } catch (const Error& error) {
      const std::string said = error.what();
      return said.substr(0, said.find(':', 7));
    }
  };
  const auto same = [](ModelConfig&) {};
  for (const char* type : {"glm4_moe", "qwen2_moe", "qwen3_moe", "olmoe"}) EXPECT_EQ(written(read(type), same), type);
  EXPECT_EQ(written(read("dots1"), same), "glm4_moe");
  const auto moe = [](auto change) { return [change](ModelConfig& model) { change(*model.moe); }; };
  EXPECT_EQ(written(read("qwen3_moe"), moe([](MoeConfig& m) { m.bias = true; })), "deck: model.moe.bias");
  EXPECT_EQ(written(read("qwen3_moe"), moe([](MoeConfig& m) { m.scale = 2; })), "deck: model.moe.scale");
  EXPECT_EQ(written(read("qwen2_moe"), moe([](MoeConfig& m) { m.shared_gate = false; })),
            "deck: model.moe.shared_gate");
  EXPECT_EQ(written(read("glm4_moe"), moe([](MoeConfig& m) { m.every = 2; })), "deck: model.moe.every");
  EXPECT_EQ(written(read("glm4_moe"), moe([](MoeConfig& m) { m.shared_ffn = 1409; })), "deck: model.moe.shared_ffn");
  EXPECT_EQ(written(read("olmoe"), moe([](MoeConfig& m) { m.first_dense = 1; })), "deck: model.moe.first_dense");
  EXPECT_EQ(written(read("qwen3_moe"), [](ModelConfig& m) { m.rope_dim = 4; }), "deck: model.rope_dim");
  // Any even part of any head comes back from the share that is written.
  for (std::int64_t head = 2; head <= 130; head += 2)
    for (std::int64_t turned = 2; turned <= head; turned += 2)
      EXPECT_EQ(written(read("glm4_moe", {{"head_dim", head}, {"partial_rotary_factor", 1.0}}),
                        [&](ModelConfig& m) { m.rope_dim = turned; }),
                "glm4_moe");
}

}  // namespace
}  // namespace tessera::test
