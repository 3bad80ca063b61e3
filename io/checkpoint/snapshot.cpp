#include "io/checkpoint/snapshot.hpp"

#include <algorithm>

#include "kernels/base/external_event.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/large_pages.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

constexpr std::int64_t alignment = 8;                      // of any type
constexpr std::int64_t host_step = std::int64_t{1} << 18;  // bytes that stay in the cache from digest to copy

std::int64_t bytes_of(const StateDict& state) {
  std::int64_t bytes = 0;
  for (const StateTensor& tensor : state.tensors)
    for (const StateRange& range : tensor.ranges) bytes += round_up(range.values.bytes(), alignment);
  return bytes;
}

}  // namespace

Snapshot::Snapshot(Device& device, const StateDict& shape) : device_(device), memory_(device.pinned(bytes_of(shape))) {
  if (device.compute().native()) return;
  // The host's pages come with the first write: not during a save, for which training waits.
  ask_for_large_pages(memory_.data(), bytes());
  std::ranges::fill(memory_, std::byte{});
}

void Snapshot::take(const StateDict& state) {
  require(bytes_of(state) == bytes(), "Snapshot", "the state has another size than it was made for");
  Stream& compute = device_.compute();
  Stream& saves = device_.saves();
  const bool gpu = &saves != &compute;
  clear(compute, state.digests);
  saves.wait(compute.record());
  copy_ = state;
  std::byte* at = memory_.data();
  for (std::size_t i = 0; i < copy_.tensors.size(); ++i)
    for (StateRange& range : copy_.tensors[i].ranges) {
      const Tensor live = range.values;
      range.values.data = at;
      at += round_up(live.bytes(), alignment);
      for (std::int64_t begin = 0, count = 0; begin < live.elements(); begin += count) {
        count = gpu ? live.elements() : std::min(host_step / size_of(live.type), live.elements() - begin);
        const Tensor part = live.flat(begin, count);
        digest(compute, state.digests.as<std::uint64_t>() + i, part, static_cast<std::uint64_t>(range.first + begin));
        device_.fetch(saves, range.values.flat(begin, count).data, part);
      }
    }
  copied_ = saves.record();
  if (state.before_update)
    state.before_update->record(saves);
  else
    wait();
}

}  // namespace tessera
