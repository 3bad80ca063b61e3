#include "app/cli/memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "io/metrics/console.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {

Problems against_memory(const Mpi& mpi, Control& control, const RunPlan& plan, int gpu) {
  std::string name = mpi.host(), mine = name;
  std::int64_t memory = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  if (gpu >= 0) {
    const Gpu own = Runtime::gpus()[static_cast<std::size_t>(gpu)];
    name = own.name + " of " + mpi.host();
    mine = own.uuid;
    memory = own.memory;
  }
  const std::vector<std::string> places = control.gather(mine);
  const std::int64_t ranks = std::count(places.begin(), places.end(), mine);
  const std::int64_t needed = std::accumulate(plan.memory.begin(), plan.memory.end(), std::int64_t{0});
  Problems problems;
  if (memory > 0 && needed > memory / ranks)
    problems.add(
        Exit::deck,
        fmt::format("{} ranks of {} do not fit {}, which has {}: use more hosts or GPUs, a smaller batch.micro, "
                    "recompute.mode full, or a smaller model; `tessera plan` shows what the memory is for",
                    ranks, bytes_text(needed), name, bytes_text(memory)));
  return problems;
}

}  // namespace tessera
