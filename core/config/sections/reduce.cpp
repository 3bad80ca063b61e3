#include "core/config/sections/reduce.hpp"

#include "core/config/config.hpp"

namespace tessera {

void ReduceConfig::check(const RunConfig&, std::vector<Finding>& found) const {
  if (wire != GradientWire::fp32 && order != ReduceOrder::batch)
    found.push_back({{"reduce.wire", "reduce.order"},
                     "rounds the gradient of each micro-batch, which order batch sums one by one; order rank first "
                     "adds up those of a rank: use order batch, or wire fp32"});
  if (rounding == WireRounding::stochastic && wire != GradientWire::bf16 && wire != GradientWire::fp32)
    found.push_back({{"reduce.rounding", "reduce.wire"},
                     "stochastic is for wire bf16: codes in blocks are rounded to the nearest"});
}

std::span<const Effect> ReduceConfig::effects() {
  static constexpr Effect rows[] = {
      {"reduce.bucket_mib", "sharding",
       "with sharding: optimizer: under full sharding gradients travel module by module",
       [](const RunConfig& c) { return c.sharding == Sharding::optimizer; }},
      {"reduce.keep", "reduce.wire", "with a wire of few bytes: fp32 keeps all gradients",
       [](const RunConfig& c) { return c.reduce.wire != GradientWire::fp32; }},
      {"reduce.rounding", "reduce.wire", "with wire bf16",
       [](const RunConfig& c) { return c.reduce.wire == GradientWire::bf16; }},
  };
  return rows;
}

std::span<const OtherName> ReduceConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"ddp_bucket_size bucket_cap_mb reduce_bucket_size", "reduce.bucket_mib", ""},
      {"grad_reduce_in_fp32 communication_data_type gradient_dtype reduce_dtype grad_reduce_dtype ddp_comm_hook "
       "zero_quantized_gradients accumulate_allreduce_grads_in_fp32",
       "reduce.wire", "fp32 | bf16 | mxfp8 | fp8_block"},
  };
  return rows;
}

}  // namespace tessera
