#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/config/config.hpp"
#include "core/device/device.hpp"
#include "core/step/step_plan.hpp"
#include "kernels/base/choices.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera {

/// One line of the communication budget of a step.
struct CollectiveCost {
  int group = -1;  ///< bucket group; -1: sums of the norm and of the report, exchanges of experts' rows
  Collective collective = Collective::all_gather;
  std::int64_t bytes = 0, count = 0;  ///< bytes of one; of exchanged rows those of even routing
  std::string_view label = {};
};

/// Everything that follows from a run's configuration for one of its ranks, before any memory is allocated.
struct RunPlan : StepPlan {
  RunConfig config;                 ///< derived values filled in
  double flops_per_step = 0;        ///< of all ranks' GEMMs and attention, forward and backward, as they will run
  double model_flops_per_step = 0;  ///< the same without recomputation: what the model asks for
  MemoryReport memory{};            ///< bytes of this rank
  std::vector<CollectiveCost> collectives{};
  std::vector<LibraryChoices::Words> library_work{};  ///< of a step, for which libraries have a choice of algorithms
  gemm::Routes routes{};  ///< of a step's products of codes
};

/// All reasons to refuse running `config` (derived) on `ranks` ranks, each with its keys. Pure.
std::vector<Finding> refusals(const RunConfig& config, int ranks);

/// Builds model and layout, and runs one step dry: memory, order of weights, contributions per gradient and collectives
/// are what that step did. Allocates no device memory. Throws Error{deck} with all refusals if there are any. Pure: any
/// rank of `ranks` can be planned anywhere.
RunPlan resolve(const RunConfig& config, int ranks, int rank);

/// The plan of a Decoder for sequences of at most `capacity` tokens, no more than seq_len: the model in the types of
/// precision.compute, nothing quantized. Else as resolve(). Throws Error{deck}. Pure.
RunPlan resolve_decoding(const RunConfig& config, int ranks, int rank, std::int64_t capacity);

/// The plan of the rank that needs most memory, by what ranks own and receive; of rank 0 where all need as much.
RunPlan resolve_largest(const RunConfig& config, int ranks);

/// Bytes that the rank which needs most needs in all, whether full sharding gathers a block at a time or a module.
struct GranularityPeaks {
  std::int64_t unit = 0, module = 0;
};
/// Nothing where sharding is not full.
std::optional<GranularityPeaks> granularity_peaks(const RunConfig& config, int ranks);

}  // namespace tessera
