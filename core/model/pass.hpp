#pragma once
#include <optional>
#include <span>

#include "core/params/access.hpp"
#include "kernels/moe/moe.hpp"

namespace tessera {

class RowExchange;
class FactorObserver;

/// Sums of one micro-batch on the device, zeroed at the start of its step. The log row is made from them, added up in
/// the order of micro-batches.
struct StepSums {
  std::uint64_t not_finite = 0;  ///< 1 when a factor of a product held NaN or infinity before it was quantized
  double loss = 0;               ///< sum over tokens of the cross-entropy
  double balance = 0;        ///< sum over sequences and MoE layers of E sum f P
  double z = 0;              ///< sum over tokens and MoE layers of logsumexp^2
  double busiest = 0;        ///< sum over MoE layers of the rows of the busiest expert
  std::uint64_t logits = 0;  ///< digest of the logits, if traced
  DispatchStats arrivals;         ///< rows that arrived at this rank's experts
};

/// Where a step's routing is recorded, a row for each layer with experts; empty where it is not.
struct RoutingRecords {
  Tensor words;  ///< i64 [layers, RoutingRecord::words(E)], sums of this rank
  Tensor bias;   ///< fp32 [layers, E]: what the layers chose by, in a model that has it

  explicit operator bool() const { return static_cast<bool>(words); }
};

/// Choices of experts that come to a micro-batch from outside, and a place where its own are kept: i32 [layers with
/// experts, M k], the experts of each slot. Empty: none.
struct SlotChoices {
  Tensor given = {};   ///< in place of the routers' own
  Tensor chosen = {};  ///< written in forward
};

/// Key of stochastic rounding, together with a weight's name and an element's index.
struct StepKey {
  std::uint64_t seed = 0;
  Tensor step;  ///< u64 [1] on the device, counted from 1
};

/// Arguments of a model's call: memory and weights come with it, since layers hold shapes and ids only.
struct Pass {
  Stream& stream;
  WeightSource& weights;
  GradientSink* gradients = nullptr;  ///< null: forward only
  Arena& arena;
  StepSums* sums = nullptr;                ///< on the device
  std::uint64_t* logits_digest = nullptr;  ///< on the device (&sums->logits) when the logits are traced, else null
  StepKey key = {};
  RowExchange* exchange = nullptr;  ///< null without expert parallelism
  RoutingRecords routing = {};
  std::optional<float> fault = {};  ///< fault injection: a value for the gradient into the first block's last branch
  std::span<FactorObserver* const> observers = {};  ///< see the factors of products

  /// The micro-batch's flag (u64 [1]) that quantizers set if a value is not finite; empty without sums.
  Tensor not_finite() const { return sums ? Tensor{&sums->not_finite, DType::u64, {1}} : Tensor{}; }
};

/// One micro-batch on the device: ids and targets i32 [sequences * T]; a target may be no_target. Its last `padding`
/// tokens are computed, so that every rank makes the same passes, but count in no sum. Training has no padding.
struct MicroBatch {
  Tensor ids, targets;
  std::int64_t sequences = 0;
  double loss_scale = 0;            ///< of sums over all tokens: 1 / (global batch * seq_len)
  std::int64_t first_sequence = 0;  ///< its first sequence's index in the global batch
  std::int64_t padding = 0;         ///< tokens
  Tensor target_scale = {};         ///< of the cross-entropy, f64 [1]: 1 / targets of the global batch; 0 without any
  Tensor positions = {};  ///< i32 [sequences * T], a token's place in its document; empty: a sequence is one document
  SlotChoices choices = {};
};

}  // namespace tessera
