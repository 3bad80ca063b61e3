#include "io/checkpoint/slabs.hpp"

#include <algorithm>
#include <exception>

#include "io/checkpoint/storage.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/large_pages.hpp"

namespace tessera {
namespace {

// A block holds the whole pages of a window, and an element of another program's file that crosses the window's end.
constexpr std::int64_t window_bytes = LargePages::bytes - 2 * page_bytes, step_bytes = window_bytes / 2;

}  // namespace

std::int64_t bytes_of(const StoredTensors& stored, const Slab& slab) {
  return slab.values.elements() * size_of(stored[slab.tensor]->type);
}

std::int64_t offset_of(const StoredTensors& stored, const Slab& slab) {
  const StoredTensor& tensor = *stored[slab.tensor];
  const StoredTensor::Part& part = tensor.parts[slab.part];
  return part.offset + (slab.first - part.first) * size_of(tensor.type);
}

std::vector<Slab> slabs_of(const std::vector<StateTensor>& held, const StoredTensors& stored) {
  std::vector<Slab> slabs;
  for (std::size_t i = 0; i < held.size(); ++i)
    for (const StateRange& range : held[i].ranges)
      for (std::size_t p = 0; stored[i] && p < stored[i]->parts.size(); ++p) {
        const StoredTensor::Part& part = stored[i]->parts[p];
        const std::int64_t size = size_of(stored[i]->type),
                           end = std::min(range.first + range.values.elements(), part.first + part.count);
        for (std::int64_t at = std::max(range.first, part.first), count = 0; at < end; at += count) {
          const std::int64_t offset = part.offset + (at - part.first) * size;
          count = std::min(ceil_div(step_bytes - offset % step_bytes, size), end - at);
          slabs.push_back({i, p, at, range.values.flat(at - range.first, count)});
        }
      }
  return slabs;
}

std::vector<Window> windows_of(const StoredTensors& stored, std::span<const Slab> slabs) {
  std::vector<Window> windows;
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    const std::size_t file = file_index(stored[slabs[i].tensor]->slot);
    const std::int64_t begin = offset_of(stored, slabs[i]), end = begin + bytes_of(stored, slabs[i]);
    if (windows.empty() || windows.back().file != file || begin < windows.back().end ||
        begin / window_bytes != windows.back().begin / window_bytes)
      windows.push_back({file, begin, end, slabs.subspan(i, 0)});
    Window& window = windows.back();
    window.end = end;
    window.slabs = {window.slabs.data(), window.slabs.size() + 1};
  }
  return windows;
}

void each_call(const StoredTensors& stored, std::span<const Slab> slabs, bool collective, const MoveSlabs& call) {
  const std::int64_t call_bytes = std::int64_t{collective ? 16 : 2} << 20;
  std::exception_ptr failure;
  std::vector<std::byte> memory;
  try {
    memory.resize(static_cast<std::size_t>(call_bytes));
  } catch (...) {
    failure = std::current_exception();
  }
  for (std::size_t t = 0; t < stored.size(); ++t)
    for (std::size_t p = 0; stored[t] && p < stored[t]->parts.size(); ++p) {
      const auto is_here = [&](std::size_t i) {
        return i < slabs.size() && slabs[i].tensor == t && slabs[i].part == p;
      };
      const std::int64_t bytes = stored[t]->parts[p].count * size_of(stored[t]->type);
      std::int64_t calls = collective ? ceil_div(bytes, call_bytes - 2 * step_bytes) : 0;
      while (calls-- > 0 || is_here(0)) try {
          std::size_t n = 0;
          for (std::int64_t used = 0; is_here(n) && (used += bytes_of(stored, slabs[n])) <= call_bytes;) ++n;
          const std::span<const Slab> now = slabs.first(n);
          slabs = slabs.subspan(n);
          if (collective || !failure) call(*stored[t], p, failure ? std::span<const Slab>() : now, memory.data());
        } catch (...) {
          failure = failure ? failure : std::current_exception();
        }
    }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera
