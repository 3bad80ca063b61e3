#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "core/plan/plan.hpp"

namespace tessera {

/// Peak performance of a device.
struct Peak {
  std::string device;  ///< name, as the driver gives it
  double flops = 0;    ///< FLOP/s of dense matrix products
};

/// The peak of a GPU for products in the type of `compute`, from the maker's data sheet. Empty for hardware that is not
/// in the table, such as every CPU: no number is better than a wrong one.
std::optional<Peak> peak_of(std::string_view device, Compute compute);

/// The peak of the device on which this process runs.
std::optional<Peak> peak_here(Compute compute);
/// The peak of a run's ranks: run.mfu_peak, else peak_here().
std::optional<Peak> peak_of_run(const RunConfig& config);

/// Advice what is faster, if this machine has no instructions for products in the type of `compute`; else empty.
std::string slow_products_text(Compute compute);

/// The formula of MFU. The model's FLOPs are those of its GEMMs and of causal attention, forward and backward, without
/// recomputation (RunPlan::model_flops_per_step). Attention scores, which backward computes again, count twice.
inline constexpr std::string_view mfu_formula = "FLOPs of the model in a step / (seconds x ranks x peak)";
/// MFU of a step by that formula, 0..1.
double utilisation(const RunPlan& plan, const Peak& peak, double seconds);

/// Text of a run's numbers for the formula, or that there is no MFU without a peak.
std::string utilisation_text(const RunPlan& plan, const std::optional<Peak>& peak);

}  // namespace tessera
