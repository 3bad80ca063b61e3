#pragma once
#include <array>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "core/device/device.hpp"
#include "core/layout/ranks.hpp"
#include "core/model/pass.hpp"
#include "core/step/step_sizes.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

/// Sequences of one step or one pass of an evaluation on the host: ids and targets, sequence by sequence.
struct HostSequences {
  std::vector<std::int32_t> ids, targets;
  std::int64_t sequences = 0;
  std::int64_t padding = 0;  ///< the last tokens that are computed but count in no sum
  bool checked = false;      ///< whether micro-batches of other ranks follow, for a spot check
  std::uint64_t step = 0;    ///< the optimizer step that they belong to, from 1; 0: none
  std::optional<std::int64_t> counted = {};  ///< targets in the global batch; nothing: every token has one
  std::vector<std::int32_t> positions = {};  ///< of each token in its document; empty: in its sequence
  /// The experts of each slot, [micro-batches, layers with experts, slots]; empty: the routers choose.
  std::vector<std::int32_t> given = {};
};

/// A step's inputs from the host besides its tokens.
struct StepScalars {
  float rate = 0;                                            ///< learning rate
  float norm_limit = std::numeric_limits<float>::infinity();  ///< a step with a larger gradient norm is skipped
};
/// The same, and what follows from the batch.
struct StepInputs : StepScalars {
  std::uint64_t step = 0;
  double target_scale = 0;  ///< of the gradient of the cross-entropy
};

/// A step's results for the host, read from ONE block.
struct StepReport {
  std::vector<std::uint64_t> counters;  ///< words of the rules' counters
  ClipResult clip;
  std::vector<std::int64_t> routing;  ///< RoutingRecords::words, summed over ranks, if routing is recorded
  std::vector<float> bias;            ///< RoutingRecords::bias, likewise
  /// This rank's choices of experts, [StepSizes::kept_rounds, layers with experts, slots]
  std::vector<std::int32_t> chosen;
  std::vector<StepSums> sums;  ///< by micro-batch of the global batch; of an evaluation's pass: by rank, then zeros
  Event begin, end;            ///< around the work between StepMemory's begin() and end()
};

/// Which of the two pinned blocks a step uses (double buffering).
enum class Turn : std::uint8_t { even, odd };

/// Device memory for a step's inputs and results, in two blocks. One block goes up (scalars, step number, tokens, given
/// choices of experts). One goes down (counters, clip result, all ranks' sums, what is recorded of the routing). Each
/// has two pinned counterparts that alternate (double buffering): the host fills or reads one while the device uses the
/// other. Local.
class StepMemory {
 public:
  /// For one rank of `world` with the sequences that `sizes` gives it, whose rules have `counters` counters of 64 bits.
  StepMemory(Device& device, const RankIn& world, const StepSizes& sizes, std::int64_t counters);

  /// Sets the words of the rules' counters: those of a fresh run, or saved ones.
  void initialise(Stream& stream, const std::vector<std::uint64_t>& counters);
  /// Begins a step with the other pinned block: one copy up, and this rank's sums are cleared.
  Turn begin(Stream& stream, const HostSequences& batch, const StepScalars& scalars = {}, double target_scale = 0);
  /// Zeroes this rank's sums, of the routing too.
  void clear_sums(Stream& stream);
  /// Ends the step: one copy down, into the pinned block of the last begin().
  Turn end(Stream& stream);
  /// The results that end() copied down; waits for them. Can be read until the next begin() but one.
  StepReport report(Turn turn);

  /// The first `count` sequences of this rank's micro-batch in a round.
  MicroBatch micro_batch(std::int64_t round, std::int64_t count, double loss_scale) const;
  /// The first micro-batch of rank `of`, which a spot check computes as its computation number `number`, from 1.
  MicroBatch micro_batch_of(int of, int number, double loss_scale) const;

  const float* rate() const { return &inputs()->rate; }
  const float* norm_limit() const { return &inputs()->norm_limit; }
  /// The step number on the device, u64 [1].
  Tensor step() const { return {&inputs()->step, DType::u64, {1}}; }
  Tensor counters() const { return {down_.data, DType::i64, {counters_}}; }
  ClipResult* clip() const { return reinterpret_cast<ClipResult*>(at(clip_offset())); }
  Tensor squares() const { return {at(squares_offset()), DType::i64, {ExactSum::words}}; }
  /// This rank's sums in a round.
  StepSums* sums(std::int64_t round) const;
  /// Those of all rounds in which it is not idle: u64 [rounds, words], not_finite first.
  Tensor counted_sums() const;
  /// This rank's sums in the first round as 64-bit words.
  Tensor first_sums() const { return {sums(0), DType::i64, {sum_words}}; }
  /// Every rank's sums as 64-bit words [ranks * words_of_rank()], for the all-gather.
  Tensor all_sums() const;
  /// Where the routing is recorded: this rank's, and behind the norm's all-reduce all ranks'.
  RoutingRecords routing() const;
  std::int64_t words_of_rank() const { return rounds_ * sum_words; }

 private:
  static constexpr std::int64_t tokens_offset = 256;
  static constexpr std::int64_t sum_words = sizeof(StepSums) / 8;
  // Offsets in the block down, which begins with the counters.
  std::int64_t clip_offset() const { return counters_ * std::int64_t{sizeof(std::uint64_t)}; }
  std::int64_t squares_offset() const;
  std::int64_t sums_offset() const;
  std::int64_t routing_offset() const;  ///< behind all sums
  std::int64_t bias_offset() const;
  std::int64_t chosen_offset() const;
  std::int64_t given_offset() const;  ///< in the block up
  /// Choices of a micro-batch.
  Shape choices_shape() const { return {mixtures_, slots_}; }
  std::int64_t choices_bytes() const { return mixtures_ * slots_ * 4; }
  struct Pinned {
    std::span<std::byte> up, down;
    Event sent, begin, fetched, end;
  };
  StepInputs* inputs() const { return static_cast<StepInputs*>(up_.data); }
  Pinned& pinned(Turn turn) { return pinned_[static_cast<std::size_t>(turn)]; }
  std::byte* at(std::int64_t offset) const { return static_cast<std::byte*>(down_.data) + offset; }

  Device& device_;
  RankIn world_;
  std::int64_t micro_batches_;  ///< of the global batch
  std::int64_t rounds_, micro_, capacity_, length_, counters_;
  bool positions_;
  std::int64_t recorded_layers_, experts_, mixtures_, slots_, given_, kept_rounds_;
  Tensor up_, down_;
  std::array<Pinned, 2> pinned_;
  Turn current_ = Turn::even;
};

}  // namespace tessera
