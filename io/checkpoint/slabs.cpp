#include "io/checkpoint/slabs.hpp"

#include <algorithm>

#include "io/checkpoint/storage.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/large_pages.hpp"

namespace tessera {
namespace {

// A block holds the whole pages of a window, and an element of another program's file that crosses the window's end.
constexpr std::int64_t window_bytes = LargePages::bytes - 2 * page_bytes, slab_bytes = window_bytes / 2;

}  // namespace

std::byte* Window::at(std::span<std::byte> block, std::int64_t offset) const {
  return block.data() + (offset - begin / page_bytes * page_bytes);
}

std::vector<Window> windows_of(const std::vector<StateTensor>& held, const StoredTensors& stored) {
  std::vector<Window> windows;
  for (std::size_t i = 0; i < held.size(); ++i)
    for (const StateRange& range : held[i].ranges)
      for (std::size_t p = 0; stored[i] && p < stored[i]->datasets.size(); ++p) {
        const StoredTensor::Dataset& dataset = stored[i]->datasets[p];
        const std::int64_t size = size_of(stored[i]->type),
                           end = std::min(range.first + range.values.elements(), dataset.end());
        for (std::int64_t at = std::max(range.first, dataset.first), count = 0; at < end; at += count) {
          const std::int64_t offset = dataset.offset + (at - dataset.first) * size;
          count = std::min(ceil_div(slab_bytes - offset % slab_bytes, size), end - at);
          const Slab slab{i, p, at, range.values.flat(at - range.first, count), offset, count * size};
          const std::size_t file = file_index(stored[i]->slot);
          if (windows.empty() || windows.back().file != file || offset < windows.back().end ||
              offset / window_bytes != windows.back().begin / window_bytes)
            windows.push_back({file, offset, offset, {}});
          windows.back().end = slab.end();
          windows.back().slabs.push_back(slab);
        }
      }
  return windows;
}

}  // namespace tessera
