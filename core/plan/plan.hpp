#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/config/config.hpp"
#include "core/device/device.hpp"
#include "core/state/state_dict.hpp"
#include "core/step/step_plan.hpp"
#include "kernels/base/choices.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera {

/// One line of the communication budget of a step.
struct CollectiveCost {
  int group = -1;  ///< bucket group; -1: none (sums of the norm and of the report, exchanges of experts' rows)
  Collective collective = Collective::all_gather;
  std::int64_t bytes = 0, count = 0;  ///< bytes of one of `count` operations; row exchanges: with even routing
  std::string_view label = {};
};

/// Everything that follows from a run's configuration for one rank, before any memory is allocated.
struct RunPlan : StepPlan {
  RunConfig config;                 ///< derived values filled in
  double flops_per_step = 0;        ///< of all ranks' GEMMs and attention, forward, backward and recomputation
  double model_flops_per_step = 0;  ///< the same without recomputation, for MFU
  MemoryReport memory{};            ///< bytes on this rank, by category
  std::vector<CollectiveCost> collectives{};
  std::vector<LibraryChoices::Words> library_work{};  ///< pieces of a step's work with a choice of library algorithms
  std::vector<StateTensor> saved{};  ///< tensors of a checkpoint, without ranges
  gemm::Routes routes{};  ///< routes (native or decoded) of a step's products of codes
};

/// All reasons to refuse a run of `config` (derived) on `ranks` ranks, each with its keys. Pure.
std::vector<Finding> refusals(const RunConfig& config, int ranks);

/// Patterns of debug.tensors that name no tensor under any recipe of the run, which refusals() does not refuse. Local.
std::vector<Finding> unnamed_tensors(const RunConfig& config, int ranks);

/// Plans a run for one rank: builds model and layout and runs one step dry. That shows memory, order of weights,
/// contributions to gradients and collectives. Of a config without precision.schedule, such as config_of() a segment.
/// Allocates no device memory. Throws Error{deck} with all refusals if there are any. Pure: any process can plan any
/// rank. Local.
RunPlan resolve(const RunConfig& config, int ranks, int rank);

/// The plan of a Decoder for sequences of at most `capacity` tokens (at most seq_len): the model in the type of
/// precision.compute, nothing quantized. Else like resolve(). Throws Error{deck}. Pure. Local.
RunPlan resolve_decoding(const RunConfig& config, int ranks, int rank, std::int64_t capacity);

/// The plan of the rank that needs most memory, judged by what ranks own and receive; rank 0 if all need as much.
RunPlan resolve_largest(const RunConfig& config, int ranks);

/// Total bytes of the rank that needs most memory, if full sharding gathers a block at a time and if a module.
struct GranularityPeaks {
  std::int64_t unit = 0, module = 0;
};
/// Plans both granularities; empty unless sharding is full.
std::optional<GranularityPeaks> granularity_peaks(const RunConfig& config, int ranks);

}  // namespace tessera
