#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/config/section.hpp"
#include "core/config/sections/moe.hpp"
#include "core/config/sections/rope_scaling.hpp"

namespace tessera {

/// Section `model` of a deck.
struct ModelConfig {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  Derived<std::int64_t> kv_heads;
  Derived<std::int64_t> head_dim;
  Derived<std::int64_t> ffn;
  std::int64_t seq_len = 0;
  Norm norm = Norm::layer;
  double norm_eps = tessera::norm_eps;
  bool qk_norm = false;
  QkNormOver qk_norm_over = QkNormOver::head;
  Position position = Position::learned;
  double rope_base = 10000;
  Derived<std::int64_t> rope_dim;
  Activation activation = Activation::gelu;
  Derived<bool> bias;
  bool qkv_bias = false;
  bool tied_head = false;
  Derived<std::int64_t> vocab;
  std::optional<RopeScalingConfig> rope_scaling;
  std::optional<MoeConfig> moe;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.required("layers", self.layers, from_to(1, 10000), fixed, "Transformer blocks");
    v.required("hidden", self.hidden, from_to(1, 1 << 20), fixed, "Width of the residual stream");
    v.required("heads", self.heads, from_to(1, 65536), fixed, "Query heads");
    v.derived("kv_heads", self.kv_heads, from_to(1, 65536), fixed, "heads",
              "Key and value heads; fewer than heads: grouped-query attention");
    v.derived("head_dim", self.head_dim, from_to(1, 65536), fixed, "hidden / heads", "Width of one head");
    v.derived("ffn", self.ffn, from_to(1, 1 << 24), fixed, "4 hidden; swiglu: 8/3 hidden, rounded up to 128",
              "Inner width of dense feed-forward layers");
    v.required("seq_len", self.seq_len, from_to(1, 1 << 24), fixed, "Tokens of a sequence");
    v.key("norm", self.norm, OneOf(), fixed, "layer: mean and variance; rms: root mean square, no bias");
    v.key("norm_eps", self.norm_eps, from_to(1e-30, 1), fixed, "Added to the mean square before its root");
    v.key("qk_norm", self.qk_norm, OneOf(), fixed,
          "Normalise queries and keys by their root mean square");
    v.key("qk_norm_over", self.qk_norm_over, OneOf(), fixed,
          "What that mean is over. head: each head by itself; width: all heads of a token together");
    v.key("position", self.position, OneOf(), fixed, "learned: an embedding added; rotary: queries and keys rotated");
    v.key("rope_base", self.rope_base, from_to(1, 1e12), fixed, "Base of the rotary angles");
    v.derived("rope_dim", self.rope_dim, from_to(1, 65536), fixed, "head_dim",
              "First elements of each head that rotary positions turn; the rest of the head stays");
    v.key("activation", self.activation, OneOf(), fixed, "gelu: the tanh form; swiglu: silu(gate) * up");
    v.derived("bias", self.bias, OneOf(), fixed, "true with norm layer, false with rms",
              "Biases of the linear layers");
    v.key("qkv_bias", self.qkv_bias, OneOf(), fixed, "Biases of queries, keys and values, where bias gives none");
    v.key("tied_head", self.tied_head, OneOf(), fixed, "Use the token embedding as the output layer");
    v.derived("vocab", self.vocab, from_to(1, 1 << 24), fixed,
              "256 for text, or data.tokenizer's; else token files need it",
              "Entries of the vocabulary");
    v.section("rope_scaling", self.rope_scaling,
              "Slower rotary angles for longer texts, by the rule of Llama 3; without it none is changed");
    v.section("moe", self.moe, "Mixture of experts in place of feed-forward layers; without it the model is dense");
  }

  void derive(const RunConfig& config);
  void check(const RunConfig& config, std::vector<Finding>& found) const;
  void advise(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace tessera
