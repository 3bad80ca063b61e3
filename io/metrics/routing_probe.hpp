#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "io/files/posix_file.hpp"

namespace tessera {

inline constexpr const char* routing_probe_file = "routing_probe.bin";

/// The experts that routers chose for the same tokens in each evaluation of a run. With them the next evaluation is
/// compared with the one before, after a restart too. Rank 0 alone writes it. Local.
class RoutingProbe {
 public:
  /// Opens or creates the file, and drops evaluations of later steps than `step`. Throws Error{environment}.
  RoutingProbe(std::filesystem::path path, std::int64_t step);

  /// Keeps the choices [layers, slots] of the evaluation after `step`, each token's `top_k` slots together. Returns the
  /// share of its experts that a token also had in the evaluation before, for each layer the mean. Returns nothing if
  /// there was none, or one of other sizes. Throws Error{environment}.
  std::vector<double> kept(std::int64_t step, std::int64_t layers, std::int64_t top_k,
                           std::span<const std::int32_t> choices);

 private:
  struct Head {
    std::int64_t step = 0, layers = 0, top_k = 0, choices = 0;
  };

  std::filesystem::path path_;
  std::optional<Head> head_;          ///< of the evaluation before
  std::vector<std::int32_t> before_;  ///< its choices
  std::int64_t bytes_ = 0;
};

}  // namespace tessera
