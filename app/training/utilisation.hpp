#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "core/plan/plan.hpp"

namespace tessera {

/// What a device can compute at most.
struct Peak {
  std::string device;  ///< as its driver calls it
  double flops = 0;    ///< dense matrix products a second
};

/// The peak of one GPU for products in the type of `compute`, by its maker's data sheet. Empty for hardware that the
/// table does not hold, every CPU among it: no number is better than a wrong one.
std::optional<Peak> peak_of(std::string_view device, Compute compute);

/// The peak of the device on which this process runs.
std::optional<Peak> peak_here(Compute compute);
/// The peak of a run's ranks: run.mfu_peak, else peak_here().
std::optional<Peak> peak_of_run(const RunConfig& config);

/// Advice where this machine has no instructions for products in the type of `compute`, and what is faster; else empty.
std::string slow_products_text(Compute compute);

/// The model's FLOPs are those of its GEMMs and of causal attention, forward and backward, without recomputation
/// (RunPlan::model_flops_per_step); attention's scores, which its backward forms again, count both times.
inline constexpr std::string_view mfu_formula = "FLOPs of the model in a step / (seconds x ranks x peak)";
/// The share of its ranks' peak that a step used, by that formula.
double utilisation(const RunPlan& plan, const Peak& peak, double seconds);

/// A run's numbers for the formula; without a peak, that there is no MFU.
std::string utilisation_text(const RunPlan& plan, const std::optional<Peak>& peak);

}  // namespace tessera
