#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "io/convert/model_stream.hpp"

namespace tessera {

/// The mixture that a dense model becomes: which blocks get experts, and of how many a token visits how many.
struct Upcycling {
  std::int64_t experts = 0, top_k = 0;
  std::int64_t first_dense = 0, every = 1;
  std::uint64_t seed = 1234;  ///< of the routers
};

/// Reads "experts=8,top_k=2[,first_dense=1][,every=2][,seed=5]". Throws Error{usage}.
Upcycling read_upcycling(const std::string& text);

/// A mixture of experts made of a dense model's weights. Each expert is a copy of its block's feed-forward layer. The
/// routers are drawn as a fresh run with that seed draws them. All else is the dense model's. Chosen weights add up to
/// 1, so the mixture computes what the dense model does. Weights alone; reads `dense` again for each expert. Source:
/// Komatsuzaki 2023. Throws Error{file} for a model that is a mixture already or has biases in its feed-forward layers,
/// and for numbers that make no mixture.
std::unique_ptr<ModelReader> upcycled(std::unique_ptr<ModelReader> dense, const Upcycling& how);

}  // namespace tessera
