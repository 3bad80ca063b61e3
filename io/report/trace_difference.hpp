#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tessera {

/// The first thing in which two traces (debug.trace) differ, in the order in which a step makes it.
struct TraceDifference {
  std::int64_t step = 0;
  /// "choices" (of experts), "loss", "logits", "gradient", "norm", "master"; "chain": of a step before the first row.
  std::string stage;
  std::string tensor;  ///< canonical name, of choices the layer's; empty where the stage has none
  std::string a, b;    ///< the values
};

/// What comparing two traces gives.
struct TraceComparison {
  std::int64_t first = 0, last = 0;  ///< steps that both hold and that were compared; 0: none
  std::optional<TraceDifference> difference;
};

/// Compares the steps that both files hold, in what does not depend on ranks, on how weights are held or on how
/// anything travels. Throws Error{file} for a file that is no trace, or if they have no step in common.
TraceComparison compare_traces(const std::filesystem::path& a, const std::filesystem::path& b);

/// One sentence.
std::string difference_text(const TraceComparison& comparison);

}  // namespace tessera
