#include "app/cli/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

#include "io/metrics/console.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

/// What holds a rank's memory.
struct Holder {
  std::string name, id;  ///< id: the same for all ranks that share it
  std::int64_t memory = 0;
};

Holder holder(const std::string& host, int gpu) {
  if (gpu < 0) return {host, host, static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)};
  const Gpu own = Runtime::gpus()[static_cast<std::size_t>(gpu)];
  return {own.name + " of " + host, own.uuid, own.memory};
}

Problems against(const Holder& holder, const RunPlan& plan, std::int64_t ranks) {
  const std::int64_t needed = std::accumulate(plan.memory.begin(), plan.memory.end(), std::int64_t{0});
  const bool whole = plan.sync.weights.sharding == Sharding::optimizer;
  Problems problems;
  if (holder.memory > 0 && needed > holder.memory / ranks)
    problems.add(
        Exit::deck,
        fmt::format("{} of {} {} not fit {}, which has {}: use more hosts or GPUs, a smaller batch.micro, "
                    "recompute.mode full, {}or a smaller model; `tessera plan` shows what the memory is for",
                    counted(ranks, "rank"), bytes_text(needed), ranks == 1 ? "does" : "do", holder.name,
                    bytes_text(holder.memory), whole && plan.ranks.world.size > 1 ? "sharding full, " : ""));
  return problems;
}

}  // namespace

Problems against_memory(const Mpi& mpi, Control& control, const RunPlan& plan, int gpu) {
  const Holder own = holder(mpi.host(), gpu);
  const std::vector<std::string> ids = control.gather(own.id);
  return against(own, plan, std::count(ids.begin(), ids.end(), own.id));
}

Problems against_memory(const RunPlan& plan) {
  const bool on_gpus = Runtime::back_end() == "Cuda";
  if (on_gpus && Runtime::gpus().empty()) return {};
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return against(holder(host.data(), on_gpus ? 0 : -1), plan, 1);
}

}  // namespace tessera
