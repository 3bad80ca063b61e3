#include "core/device/device.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <string>
#include <string_view>

#include "kernels/base/index.hpp"

namespace tessera {
namespace {
using Space = Kokkos::DefaultExecutionSpace;
using Bytes = Kokkos::View<std::byte*, Space::memory_space>;
using HostBytes = Kokkos::View<std::byte*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
using DeviceBytes = Kokkos::View<std::byte*, Space::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
}  // namespace

struct Device::State {
  explicit State(Kind kind) : measuring(kind == Kind::measuring), stream(nullptr, measuring ? &tape : nullptr) {}

  bool measuring;
  Tape tape;
  Stream stream;
  std::vector<Bytes> blocks;
  MemoryReport memory{};
  std::int64_t allocations = 0, host_waits = 0;
  std::vector<RegionTime> regions;
  std::int64_t measured = Arena::alignment;  // the next address that a measuring device hands out

  std::byte* allocate(Category category, std::int64_t bytes) {
    const std::int64_t padded = std::max(round_up(bytes, Arena::alignment), Arena::alignment);
    memory[static_cast<std::size_t>(category)] += padded;
    ++allocations;
    if (measuring) {
      auto* address = reinterpret_cast<std::byte*>(measured);
      measured += padded;
      return address;
    }
    // Kokkos aligns to 64 bytes on the host, so the block is a little longer than what it serves.
    blocks.emplace_back(Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string(name_of(category))),
                        static_cast<std::size_t>(padded + Arena::alignment));
    const auto base = reinterpret_cast<std::int64_t>(blocks.back().data());
    return reinterpret_cast<std::byte*>(round_up(base, Arena::alignment));
  }
};

Device::Device(Kind kind) : state_(std::make_unique<State>(kind)) {}
Device::~Device() = default;

Stream& Device::compute() { return state_->stream; }
Stream& Device::communication() { return state_->stream; }
Stream& Device::copy() { return state_->stream; }
bool Device::measuring() const { return state_->measuring; }
const Tape& Device::tape() const { return state_->tape; }
const MemoryReport& Device::memory() const { return state_->memory; }
std::int64_t Device::allocations() const { return state_->allocations; }
std::int64_t Device::host_waits() const { return state_->host_waits; }

Tensor Device::allocate(Category category, DType type, Shape shape) {
  return {state_->allocate(category, shape.elements() * size_of(type)), type, shape};
}

Arena Device::arena(Category category, std::int64_t bytes) {
  if (measuring()) return Arena();
  return Arena(state_->allocate(category, bytes), bytes);
}

void Device::spent(const char* name, double seconds) {
  for (RegionTime& region : state_->regions)
    if (std::string_view(region.name) == name) {
      region.seconds += seconds;
      return;
    }
  state_->regions.push_back({name, seconds});
}
const std::vector<RegionTime>& Device::regions() const { return state_->regions; }

void Device::upload(Stream& stream, const Tensor& to, const void* from) {
  if (stream.dry() || to.bytes() == 0) return;
  const auto n = static_cast<std::size_t>(to.bytes());
  Kokkos::deep_copy(Space(), DeviceBytes(static_cast<std::byte*>(to.data), n),
                    HostBytes(static_cast<std::byte*>(const_cast<void*>(from)), n));
}

void Device::download(Stream& stream, void* to, const Tensor& from) {
  ++state_->host_waits;
  if (stream.dry() || from.bytes() == 0) return;
  const auto n = static_cast<std::size_t>(from.bytes());
  Kokkos::deep_copy(Space(), HostBytes(static_cast<std::byte*>(to), n), DeviceBytes(static_cast<std::byte*>(from.data), n));
  Space().fence("Device::download");
}

}  // namespace tessera
