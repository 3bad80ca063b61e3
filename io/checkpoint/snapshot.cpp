#include "io/checkpoint/snapshot.hpp"

#include <algorithm>

#include "kernels/base/external_event.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/large_pages.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

constexpr std::int64_t alignment = 8;  // enough for any type

std::int64_t bytes_of(const StateDict& state) {
  std::int64_t bytes = 0;
  for (const StateTensor& tensor : state.tensors)
    for (const StateRange& range : tensor.ranges) bytes += round_up(range.values.bytes(), alignment);
  return bytes;
}

}  // namespace

Snapshot::Snapshot(Device& device, const StateDict& shape) : device_(device), memory_(device.pinned(bytes_of(shape))) {
  if (device.compute().native()) {
    const std::size_t tensors = shape.tensors.size();
    const std::span<std::byte> memory = device.pinned(static_cast<std::int64_t>(tensors * sizeof(std::uint64_t)));
    digests_ = {reinterpret_cast<std::uint64_t*>(memory.data()), tensors};
    device.saves();  // create the stream now, and touch the pages below: a save must not delay training with either
    return;
  }
  ask_for_large_pages(memory_.data(), bytes());
  std::ranges::fill(memory_, std::byte{});
}

void Snapshot::take(const StateDict& state) {
  require(bytes_of(state) == bytes(), "Snapshot", "the state has another size than it was made for");
  Stream& compute = device_.compute();
  Stream& saves = device_.saves();
  saves.wait(compute.record());
  if (!digests_.empty()) clear(compute, state.digests);
  copy_ = state;
  std::byte* at = memory_.data();
  for (std::size_t i = 0; i < copy_.tensors.size(); ++i)
    for (StateRange& range : copy_.tensors[i].ranges) {
      const Tensor live = range.values;
      range.values.data = at;  // mutation: live_state_is_written
      at += round_up(live.bytes(), alignment);
      device_.fetch(saves, range.values.data, live);
      if (!digests_.empty())
        digest(compute, state.digests.as<std::uint64_t>() + i, live, static_cast<std::uint64_t>(range.first));
    }
  if (!digests_.empty()) {
    saves.wait(compute.record());
    device_.fetch(saves, digests_.data(), state.digests);
  }
  copied_ = saves.record();
  if (state.before_update)
    state.before_update->record(saves);
  else
    wait();
}

}  // namespace tessera
