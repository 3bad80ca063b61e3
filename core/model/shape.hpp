#pragma once
#include <cstdint>
#include <optional>

#include "core/config/choices.hpp"
#include "core/config/mixture_blocks.hpp"
#include "core/layout/ranks.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/base/index.hpp"
#include "kernels/moe/moe.hpp"

namespace tessera {

struct RunConfig;

/// The experts of a mixture-of-experts layer.
struct MoeShape {
  std::int64_t experts = 0, top_k = 0;
  bool renormalize = true;
  ExpertWeights weights = ExpertWeights::single;
  double balance_coef = 0, z_coef = 0;
  RankIn group = {};  ///< this rank in its expert group, whose ranks hold the experts between them
  ExpertRows rows = ExpertRows::exchange;  ///< how they reach experts of other ranks of the group
  double room = 0;    ///< rows that this rank has room for / its even share M k; 0: enough for any routing
  std::int64_t ffn = 0;         ///< F of an expert
  MixtureBlocks blocks = {};    ///< those that have experts
  std::int64_t shared_ffn = 0;  ///< F of the expert that every token visits; 0: none
  bool shared_gate = false;     ///< its answer is multiplied by the sigmoid of a logit of its own
  ScoreRule rule = {};
  BalanceOver balance_over = BalanceOver::sequence;
  bool bias = false;  ///< experts are chosen by score plus a bias that follows their load
  double capacity = 0;  ///< slots of a sequence that an expert takes, over its even share; 0: all

  /// The same as a number of slots, for sequences of T tokens; 0: no token is dropped.
  std::int64_t slots_of_sequence(std::int64_t length) const;
  std::int64_t held() const { return experts / group.size; }
  /// Whether rows reach experts of other ranks in these ranks' memory.
  bool by_peers() const { return group.size > 1 && rows == ExpertRows::peers; }
  std::int64_t first() const { return group.rank * held(); }  ///< first of the experts that this rank holds
  /// Shape of the rows that arrive at this rank, if each rank of the group has `tokens` tokens.
  ArrivalShape arrival(std::int64_t tokens, std::int64_t row_multiple) const;
};

/// Activation checkpointing of a layer: keep all that backward needs, or the input alone (recomputation: backward runs
/// forward again).
enum class Keep : std::uint8_t { all, input };

struct KeepRules {
  Keep attention = Keep::all, mlp = Keep::all, norm = Keep::all, moe = Keep::all;
  Keep block = Keep::all;
  Keep activation = Keep::all;  ///< the output of gelu or swiglu, values or codes, where its input gives the same bits
  Keep codes = Keep::all;       ///< of inputs of products, whose values backward has or can make from what it has

  /// Whether backward recomputes an activation's output. `as_codes`: the product that reads it would keep its codes.
  bool makes_activation_again(bool as_codes) const {
    return activation == Keep::input || (as_codes && codes == Keep::input);
  }
};

/// Everything that decides a model's parameters and arithmetic. Letters are those of the layers' formulas.
struct GptShape {
  std::int64_t layers = 0;      ///< L
  std::int64_t hidden = 0;      ///< C
  std::int64_t heads = 0;       ///< H
  std::int64_t kv_heads = 0;    ///< G
  std::int64_t head_dim = 0;    ///< D
  std::int64_t rope_dim = 0;    ///< R: elements of a head that rotary positions turn; 0: all
  std::int64_t ffn = 0;         ///< F, of dense layers
  std::int64_t seq_len = 0;     ///< T
  std::int64_t vocabulary = 0;  ///< V
  Norm norm = Norm::layer;
  double eps = norm_eps;  ///< added in every norm
  Position position = Position::learned;
  double rope_base = 10000;
  RopeScaling rope_scaling;
  Activation activation = Activation::gelu;
  bool bias = true;
  bool qkv_bias = false;  ///< queries, keys and values have a bias even if `bias` is false
  bool qk_norm = false;   ///< queries and keys are normalised
  QkNormOver qk_norm_over = QkNormOver::head;
  bool tied_head = false;
  std::optional<MoeShape> moe;

  DType compute = DType::bf16;
  Accumulation accumulation = Accumulation::fused;
  KeepRules keep;
  /// Elements of logits that exist at once: the head works on as many rows of the batch at a time (at least one).
  std::int64_t logits_at_once = std::int64_t{1} << 28;

  /// Elements of a head that rotary positions turn.
  std::int64_t turned() const { return rope_dim > 0 ? rope_dim : head_dim; }
  bool has_experts(std::int64_t block) const { return moe && moe->blocks.contain(block); }
  /// Rows of the vocabulary's matrices in memory.
  std::int64_t padded_vocabulary() const { return round_up(vocabulary, 128); }
  /// The type of statistics, router logits and other small sums.
  DType sum_type() const { return compute == DType::f64 ? DType::f64 : DType::f32; }

  /// The shape of a config's model on the rank that is `experts` in its expert group.
  static GptShape from(const RunConfig& config, const RankIn& experts = {});
};

}  // namespace tessera
