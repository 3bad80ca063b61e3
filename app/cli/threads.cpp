#include "app/cli/threads.hpp"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "kernels/base/runtime.hpp"

namespace tessera {
namespace {

/// Number of cores that this process may run on: a launcher, a container or `taskset` may allow fewer than the host
/// has.
std::int64_t own_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

std::int64_t host_threads(std::int64_t ranks_on_host) {
  if (const char* const asked = std::getenv("OMP_NUM_THREADS")) {
    const std::string_view text = asked;
    std::int64_t threads = 0;
    // OMP_NUM_THREADS may be a list, "4,2", whose first entry is for the outermost level.
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
    const bool whole = stop == text.data() + text.size() || *stop == ',';
    if (error == std::errc() && whole && threads >= 1) return std::min(threads, Runtime::most_threads);
  }
  const std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::int64_t share = cores / std::max<std::int64_t>(1, ranks_on_host);
  return std::clamp<std::int64_t>(share, 1, std::min(own_cores(), Runtime::most_threads));
}

Problems problems_with_threads(std::int64_t threads) {
  Problems problems;
  const std::string refused = Runtime::threads_refused(static_cast<int>(threads));
  if (!refused.empty()) problems.add(Exit::environment, refused);
  return problems;
}

}  // namespace tessera
