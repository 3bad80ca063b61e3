#include "app/cli/memory.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

#include "io/metrics/console.hpp"
#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

/// The host or GPU that holds a rank's memory.
struct Holder {
  std::string name, id;  ///< id: equal for all ranks that share it
  std::int64_t memory = 0;
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();  ///< bytes that one process may have
};

/// Bytes of host memory that this process may have by `ulimit`.
std::int64_t own_limit() {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const auto resource : {RLIMIT_DATA, RLIMIT_AS}) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      least = std::min(least, static_cast<std::int64_t>(limit.rlim_cur));
  }
  return least;
}

Holder host_memory(const std::string& host) {
  return {host, host, static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE), own_limit()};
}

Holder holder(const std::string& host, int gpu) {
  if (gpu < 0) return host_memory(host);
  const Gpu own = Runtime::gpus()[static_cast<std::size_t>(gpu)];
  return {.name = own.name + " of " + host, .id = own.uuid, .memory = own.memory};
}

/// Problems with holding the snapshots of `ranks` ranks on a host. `beside`: bytes that the plan takes there otherwise.
Problems against_snapshot(const Holder& host, const RunPlan& plan, std::int64_t beside, std::int64_t ranks) {
  const std::int64_t snapshot = snapshot_bytes(plan), left = host.memory / ranks - beside;
  Problems problems;
  if (snapshot > 0 && left >= 0 && snapshot > left)
    problems.add(
        Exit::deck,
        fmt::format("checkpoint.async: copies of the state by {}, {} each, do not fit {}, which has {} and needs {} a "
                    "rank for other things: use checkpoint.async: false",
                    counted(ranks, "rank"), bytes_text(snapshot), host.name, bytes_text(host.memory),
                    bytes_text(beside)));
  return problems;
}

Problems against(const Holder& holder, const RunPlan& plan, std::int64_t ranks) {
  const std::int64_t needed = total(plan.memory);
  const bool sliced = plan.sync.weights.sharding == Sharding::full || plan.ranks.world.size == 1;
  const std::string smaller = fmt::format(
      "a smaller batch.micro, recompute.mode full, {}or a smaller model; `tessera plan` shows what the memory is for",
      sliced ? "" : "sharding full, ");
  Problems problems;
  if (needed > holder.limit)
    problems.add(Exit::deck, fmt::format("{} of a rank do not fit what a process may have of {}, {} (ulimit -d, -v): "
                                         "raise that, use more ranks, {}",
                                         bytes_text(needed), holder.name, bytes_text(holder.limit), smaller));
  else if (holder.memory > 0 && needed > holder.memory / ranks)
    problems.add(Exit::deck, fmt::format("{} of {} {} not fit {}, which has {}: use more hosts or GPUs, {}",
                                         counted(ranks, "rank"), bytes_text(needed), ranks == 1 ? "does" : "do",
                                         holder.name, bytes_text(holder.memory), smaller));
  return problems;
}

}  // namespace

/// An upper bound: counts the padding of slices, which a snapshot does not copy.
std::int64_t snapshot_bytes(const RunPlan& plan) {
  const auto held = [&](Category category) { return plan.memory[static_cast<std::size_t>(category)]; };
  return plan.config.checkpoint.async ? held(Category::masters) + held(Category::optimizer) : 0;
}

Problems problems_with_memory(const Mpi& mpi, Control& control, const RunPlan& plan, int gpu) {
  const Holder own = holder(mpi.host(), gpu);
  const auto sharing = [&](const std::string& id) {
    const std::vector<std::string> ids = control.gather(id);
    return std::count(ids.begin(), ids.end(), id);
  };
  Problems problems = against(own, plan, sharing(own.id));
  problems.add(against_snapshot(host_memory(mpi.host()), plan, gpu < 0 ? total(plan.memory) : 0, sharing(mpi.host())));
  return problems;
}

Problems problems_with_memory(const RunPlan& plan) {
  const bool on_gpus = Runtime::back_end() == "Cuda";
  if (on_gpus && Runtime::gpus().empty()) return {};
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  Problems problems = against(holder(host.data(), on_gpus ? 0 : -1), plan, 1);
  problems.add(against_snapshot(host_memory(host.data()), plan, on_gpus ? 0 : total(plan.memory), 1));
  return problems;
}

}  // namespace tessera
