#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/config/mixture_blocks.hpp"
#include "core/config/section.hpp"

namespace tessera {

/// Section `model.moe` of a deck.
struct MoeConfig {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  Derived<std::int64_t> ffn;
  std::int64_t first_dense = 0;
  std::int64_t every = 1;
  std::int64_t shared_ffn = 0;
  bool shared_gate = false;
  ExpertWeights weights = ExpertWeights::single;
  Scores scores = Scores::softmax;
  RouterLogits logits = RouterLogits::fp32;
  Derived<bool> renormalize;
  double scale = 1;
  std::int64_t groups = 1;
  Derived<std::int64_t> top_groups;
  bool bias = false;
  double bias_rate = 0.001;
  BalanceOver balance_over = BalanceOver::sequence;
  Derived<double> balance_coef;
  Derived<double> z_coef;
  double capacity = 0;

  MixtureBlocks blocks() const { return {first_dense, every}; }

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.required("experts", self.experts, from_to(1, 65536), fixed, "Experts of each layer that has some");
    v.required("top_k", self.top_k, from_to(1, 65536), fixed, "Experts that each token visits");
    v.derived("ffn", self.ffn, from_to(1, 1 << 24), fixed, "model.ffn", "Inner width of an expert");
    v.key("first_dense", self.first_dense, from_to(0, 10000), fixed,
          "First blocks that have a dense feed-forward layer, of width model.ffn");
    v.key("every", self.every, from_to(1, 10000), fixed,
          "Of the others, blocks whose number, from 1, is a multiple of it have experts; the rest are dense");
    v.key("shared_ffn", self.shared_ffn, from_to(0, 1 << 24), fixed,
          "Inner width of the shared expert, which every token visits beside its top_k; 0: none");
    v.key("shared_gate", self.shared_gate, OneOf(), fixed,
          "Multiply the shared expert's answer by the sigmoid of a logit of its own");
    v.key("weights", self.weights, OneOf(), may_change,
          "single: one grouped parameter for all experts; discrete: one parameter each. Same bits either way");
    v.key("scores", self.scores, OneOf(), fixed,
          "What the router makes of its logits. softmax: probabilities of all experts; sigmoid: of each by itself");
    v.key("logits", self.logits, OneOf(), fixed, "Type to which the router's logits, sums in fp32, are rounded");
    v.derived("renormalize", self.renormalize, OneOf(), fixed, "true when top_k > 1",
              "Scale the chosen experts' scores to sum 1");
    v.key("scale", self.scale, above_to(0, 1e3), fixed, "Factor of the chosen experts' weights, after renormalize");
    v.key("groups", self.groups, from_to(1, 65536), fixed,
          "Groups of neighbouring experts; a token's experts lie in the top_groups whose two best sum highest");
    v.derived("top_groups", self.top_groups, from_to(1, 65536), fixed, "groups",
              "Groups in which each token's experts lie");
    v.key("bias", self.bias, OneOf(), fixed,
          "Add to the scores, for the choice alone, a bias of each expert that rises while the expert has less than "
          "its share of a step's tokens, and falls while it has more (loss-free balancing)");
    v.key("bias_rate", self.bias_rate, from_to(0, 1e3), told, "How much that bias changes in a step; 0: frozen");
    v.key("balance_over", self.balance_over, OneOf(), fixed,
          "What the balance loss takes for an expert's load. sequence: its share of the sequence's slots; batch: its "
          "share of the whole batch's, in the step before");
    v.derived("balance_coef", self.balance_coef, from_to(0, 1e3), told, "0.0001 with bias, else 0.01",
              "Weight of the balance loss (Switch)");
    v.derived("z_coef", self.z_coef, from_to(0, 1e3), told, "0 with scores sigmoid, else 0.001",
              "Weight of the router's z-loss (ST-MoE)");
    v.key("capacity", self.capacity, from_to(0, 65536), told,
          "How many tokens of a sequence an expert takes, over its even share: those first in the sequence; a token "
          "beyond keeps its other experts' answers, unscaled; 0: all");
  }

  void derive(const RunConfig& config);
  void check(const RunConfig& config, std::vector<Finding>& found) const;
  void advise(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const MoeConfig&) const = default;
};

}  // namespace tessera
