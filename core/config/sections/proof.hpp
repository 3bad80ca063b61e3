#pragma once
#include <span>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// Section `proof` of a deck.
struct ProofConfig {
  bool gather_overlap = true;
  GatherWire wire = GatherWire::automatic;
  Derived<GatherCuts> cuts;
  GatherStaging staging = GatherStaging::automatic;
  bool reduce_overlap = true;
  bool graph = true;
  bool copy_engines = true;
  ExpertRows expert_rows = ExpertRows::automatic;
  bool share_gpu = false;
  bool mixed_hosts = false;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("gather_overlap", self.gather_overlap, OneOf(), may_change, "Gather weights under the next forward");
    v.key("wire", self.wire, OneOf(), may_change,
          "What travels of weights that are held quantized: their codes, or their bf16, which every rank quantizes; "
          "auto: the fewer bytes");
    v.derived("cuts", self.cuts, OneOf(), may_change,
              "tile where sharding is full or codes of mxfp8, mxfp6, mxfp4 or nvfp4_46 travel, else flat",
              "Where weights that the recipe quantizes are cut between ranks. flat: anywhere, in equal slices; tile: "
              "between rows of scale blocks");
    v.key("staging", self.staging, OneOf(), may_change,
          "Where the bf16 of weights that are held quantized waits for its gather. alias_grads: in the first half of "
          "their gradients; ring: in two slots as large as the largest group; auto: alias_grads");
    v.key("reduce_overlap", self.reduce_overlap, OneOf(), may_change, "Reduce gradients under the rest of backward");
    v.key("graph", self.graph, OneOf(), may_change,
          "On a GPU, capture a step once and replay it as one CUDA graph, rather than launch kernel by kernel");
    v.key("copy_engines", self.copy_engines, OneOf(), may_change,
          "Let the copy engines of GPUs on one host move gradients and weights, so that no multiprocessor takes part; "
          "where they cannot, or with false, NCCL does");
    v.key("expert_rows", self.expert_rows, OneOf(), may_change,
          "How rows reach experts of other ranks. exchange: sorted, sent, and sorted again, behind a wait of the host "
          "for their number; peers: kernels read and write them in the other ranks' memory, in steps that are one CUDA "
          "graph, where all ranks of an expert group are on one host; auto: peers where the GPUs of each expert group "
          "reach each other's memory, else exchange");
    v.key("share_gpu", self.share_gpu, OneOf(), may_change,
          "Let several ranks share a GPU; they talk through host memory");
    v.key("mixed_hosts", self.mixed_hosts, OneOf(), may_change,
          "Let ranks compute with other builds, libraries, instructions or GPUs than each other: other bits than on "
          "equal hosts, and replicas that may differ");
  }

  void derive(const RunConfig& config);
  /// Settles expert_rows auto, which stands for exchange until then: `reached` says whether the GPUs of each expert
  /// group reach each other's memory.
  void settle_expert_rows(bool reached);
  void check(const RunConfig& config, std::vector<Finding>& found) const;
  void advise(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const ProofConfig&) const = default;
};

/// stages_values: whether quantized weights are all-gathered as bf16, which is staged. ships_both_copies: whether they
/// travel as codes of both copies, because neither can be derived from the other; that takes proof.cuts `tile`.
/// `config.precision.primary_weights` must be filled.
bool stages_values(const RunConfig& config);
bool ships_both_copies(const RunConfig& config);

}  // namespace tessera
