#include "app/training/tell/utilisation.hpp"

#include <fmt/format.h>

#include "app/training/tell/summary.hpp"
#include "io/metrics/console.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/gemm/instructions.hpp"

namespace tessera {
namespace {

// Peak of dense products in TFLOP/s, without sparsity: bf16 on tensor cores; fp32 outside of them, where this program
// computes it.
struct DataSheet {
  std::string_view device;
  double bf16, fp32;
};
constexpr DataSheet data_sheets[] = {
    {"NVIDIA H200", 989.4, 66.9},           {"NVIDIA H200 NVL", 835.5, 60.0},
    {"NVIDIA H100 80GB HBM3", 989.4, 66.9}, {"NVIDIA H100 PCIe", 756.0, 51.2},
    {"NVIDIA GH200 480GB", 989.4, 66.9},    {"NVIDIA A100-SXM4-40GB", 312.0, 19.5},
    {"NVIDIA A100-SXM4-80GB", 312.0, 19.5}, {"NVIDIA A100-PCIE-40GB", 312.0, 19.5},
    {"NVIDIA A100 80GB PCIe", 312.0, 19.5},
};

}  // namespace

std::optional<Peak> peak_of(std::string_view device, Compute compute) {
  for (const DataSheet& sheet : data_sheets)
    if (sheet.device == device)
      return Peak{std::string(device), (compute == Compute::bf16 ? sheet.bf16 : sheet.fp32) * 1e12};
  return std::nullopt;
}

std::optional<Peak> peak_here(Compute compute) {
  const std::vector<Gpu> gpus = Runtime::gpus();
  return gpus.empty() ? std::nullopt : peak_of(gpus.front().name, compute);
}

std::optional<Peak> peak_of_run(const RunConfig& config) {
  if (config.run.mfu_peak > 0) return Peak{"run.mfu_peak", config.run.mfu_peak * 1e12};
  return peak_here(config.precision.compute);
}

std::string slow_products_text(Compute compute) {
  if (gemm::has_instructions(compute == Compute::bf16 ? DType::bf16 : DType::f32)) return "";
  return fmt::format("{} products are computed in fp32 here, since this CPU has no instructions for them: "
                     "precision.compute: fp32 is as fast or faster, in more memory", name_of(compute));
}

double utilisation(const RunPlan& plan, const Peak& peak, double seconds) {
  return plan.model_flops_per_step / (seconds * plan.ranks.world.size * peak.flops);
}

std::string utilisation_text(const RunPlan& plan, const std::optional<Peak>& peak) {
  if (!peak) return "no MFU: the peak of this hardware is not known, and run.mfu_peak does not say it";
  return fmt::format("MFU: {}: {}, {}, {:.4g} TFLOP/s ({}, dense {})", mfu_formula,
                     flop_text(plan.model_flops_per_step), counted(plan.ranks.world.size, "rank"), peak->flops * 1e-12,
                     peak->device, name_of(plan.config.precision.compute));
}

}  // namespace tessera
