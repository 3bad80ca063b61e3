#pragma once

/// What collectives of weights, gradients and statistics are called in records, errors and plans.
namespace tessera::label {

inline constexpr const char* weights = "weights";            ///< gathered inside a sharding group
inline constexpr const char* shards = "shards";              ///< gathered across sharding groups
inline constexpr const char* gradients = "gradients";        ///< exchanged inside a sharding group
inline constexpr const char* running_sums = "running sums";  ///< of gradients, between sharding groups
inline constexpr const char* statistics = "statistics";      ///< of quantizers; no trace has them

}  // namespace tessera::label
