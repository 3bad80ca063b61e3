#include "app/cli/threads.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <thread>

namespace tessera {

std::int64_t host_threads(std::int64_t ranks_on_host) {
  if (const char* const asked = std::getenv("OMP_NUM_THREADS")) {
    const std::string_view text = asked;
    std::int64_t threads = 0;
    // OpenMP takes a list, "4,2": its first entry is the outermost level.
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
    const bool whole = stop == text.data() + text.size() || *stop == ',';
    if (error == std::errc() && whole && threads >= 1) return threads;
  }
  const std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  return std::max<std::int64_t>(1, cores / std::max<std::int64_t>(1, ranks_on_host));
}

}  // namespace tessera
