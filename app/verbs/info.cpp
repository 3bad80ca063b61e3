#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/cli/build.hpp"
#include "app/cli/threads.hpp"
#include "app/cli/waiting.hpp"
#include "app/training/tell/utilisation.hpp"
#include "app/verbs/verbs.hpp"
#include "io/files/json_text.hpp"
#include "io/metrics/console.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

nlohmann::ordered_json to_json(const std::vector<Gpu>& gpus) {
  auto json = nlohmann::ordered_json::array();
  for (const Gpu& gpu : gpus)
    json.push_back({{"name", gpu.name}, {"capability", gpu.capability}, {"memory", gpu.memory},
                    {"uuid", gpu.uuid}, {"peers", gpu.peers}});
  return json;
}

void print(const std::vector<Gpu>& gpus) {
  if (Runtime::back_end() != "Cuda") return;
  fmt::print("\ndriver     {}", Runtime::gpu_driver().empty() ? "none found" : Runtime::gpu_driver());
  for (const Gpu& gpu : gpus)
    fmt::print("\nGPU        {}, {:.0f} GiB, sm {}, copies to {}", gpu.name,
               static_cast<double>(gpu.memory) / (1 << 30), gpu.capability,
               counted(gpu.peers, "other GPU"));
}

}  // namespace

int run_info(const InfoOptions& options) {
  const Build build = this_build();
  const std::vector<Gpu> gpus = Runtime::gpus();
  const auto bf16 = peak_here(Compute::bf16), fp32 = peak_here(Compute::fp32);
  if (options.format == Format::json) {
    nlohmann::ordered_json json = {{"version", build.version},
                                   {"git_sha", build.git_sha},
                                   {"compiler", build.compiler},
                                   {"cpu", build.cpu},
                                   {"build_type", build.build_type},
                                   {"back_end", build.back_end},
                                   {"threads", host_threads(1)},
                                   {"waiting", thread_waiting()},
                                   {"mpi", build.mpi},
                                   {"launcher", build.launcher},
                                   {"bf16_instructions", slow_products_text(Compute::bf16).empty()}};
    for (const Library& library : build.libraries) json["libraries"][library.name] = library.version;
    json["gpu_driver"] = Runtime::gpu_driver();
    json["gpus"] = to_json(gpus);
    json["peak_flops"] = nullptr;
    if (bf16 && fp32) json["peak_flops"] = {{"device", bf16->device}, {"bf16", bf16->flops}, {"fp32", fp32->flops}};
    fmt::print("{}\n", json_text(json));
    return 0;
  }
  fmt::print("tessera    {}, {}\ncompiler   {}, {}, for {}\nback end   {}\n", build.version, build.git_sha,
             build.compiler, build.build_type, build.cpu, build.back_end);
  fmt::print("threads    {}\nwaiting    {}\nMPI        {}\n", host_threads(1), thread_waiting(), build.mpi);
  fmt::print("launcher   {}\nlibraries ", build.launcher.empty() ? "none where the build found one" : build.launcher);
  for (const Library& library : build.libraries) fmt::print(" {} {}", library.name, library.version);
  print(gpus);
  if (const std::string slow = slow_products_text(Compute::bf16); !slow.empty()) fmt::print("\nspeed      {}", slow);
  fmt::print("\nMFU        ");
  if (bf16 && fp32)
    fmt::print("{}; peak: {:.1f} TFLOP/s in bf16, {:.1f} in fp32 ({})\n", mfu_formula, bf16->flops * 1e-12,
               fp32->flops * 1e-12, bf16->device);
  else
    fmt::print("none: the peak of this hardware is not known\n");
  return 0;
}

}  // namespace tessera
