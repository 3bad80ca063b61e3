#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Where the router of one layer sent a step's tokens: a line of routing.jsonl. Sums are over the global batch, so they
/// are the same on any number of ranks.
struct RoutingRow {
  std::int64_t step = 0;           ///< from 1
  std::int64_t layer = 0;          ///< the block's number, from 0
  std::vector<std::int64_t> load;  ///< slots by expert
  std::optional<double> moved;     ///< half the sum of |change of share| since the last recorded step, if there is one
  double scores_entropy = 0;       ///< mean over tokens of the scores' entropy / ln E; 0 with one expert
  std::vector<float> bias;         ///< that the layer chose by, by expert; empty without
  std::uint64_t choices = 0;       ///< digest of all choices of the layer, by slot of the global batch
  std::optional<double> dropped;   ///< share of the slots that experts of a capacity did not take; nothing without one
  std::optional<double> differ;    ///< of a replay: share of the slots that the own router would not have chosen
  bool skipped = false;            ///< the step was no update

  double share(std::size_t expert) const;  ///< of the slots
  double max_vio() const;                  ///< the largest share times E, less 1
  double least() const;                    ///< the smallest share times E
  double entropy() const;                  ///< of the shares / ln E; 0 with one expert
  std::int64_t unused() const;             ///< experts without a slot
};

/// How much of one layer's choices an evaluation shares with the evaluation before: another line of routing.jsonl.
struct KeptRow {
  std::int64_t step = 0, layer = 0;
  double kept = 0;  ///< mean over tokens of the share of their experts that are the same
};

/// The row as one JSON object without a newline.
std::string to_json(const RoutingRow& row);
std::string to_json(const KeptRow& row);

}  // namespace tessera
