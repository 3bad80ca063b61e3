#include "core/device/device.hpp"

#include <sched.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <optional>
#include <string>
#include <system_error>

#include "core/device/shared_pages.hpp"
#include "core/device/timeline.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/large_pages.hpp"

namespace tessera {
namespace {

using Space = Kokkos::DefaultExecutionSpace;
using Bytes = Kokkos::View<std::byte*, Space::memory_space>;
using PinnedBytes = Kokkos::View<std::byte*, Kokkos::SharedHostPinnedSpace>;
using HostBytes = Kokkos::View<std::byte*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
using DeviceBytes = Kokkos::View<std::byte*, Space::memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

Space space_of(const Stream& stream) {
  return stream.instance() ? *static_cast<const Space*>(stream.instance()) : Space();
}
HostBytes host_bytes(const void* data, const Tensor& like) {
  return HostBytes(static_cast<std::byte*>(const_cast<void*>(data)), static_cast<std::size_t>(like.bytes()));
}
DeviceBytes device_bytes(const Tensor& t) {
  return DeviceBytes(static_cast<std::byte*>(t.data), static_cast<std::size_t>(t.bytes()));
}

std::string mib(std::int64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

constexpr bool on_host = Kokkos::SpaceAccessibility<Kokkos::HostSpace, Space::memory_space>::accessible;

/// What says that there is no memory for `bytes`, with what is held already.
std::system_error no_memory(const char* what, std::int64_t bytes, const MemoryReport& held) {
  return std::system_error(std::make_error_code(std::errc::not_enough_memory),
                           mib(bytes) + " for " + what + " beside the " + mib(total(held)) +
                               " that the rank holds (`tessera plan` shows what a run needs; use more ranks, a "
                               "smaller batch.micro, recompute.mode full or sharding full)");
}

/// Allocates a view of `bytes`. Throws no_memory().
template <class View>
View taken(const char* what, std::int64_t bytes, const MemoryReport& held) {
  try {
    return View(Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string(what)), static_cast<std::size_t>(bytes));
  } catch (const std::exception&) {
    throw no_memory(what, bytes, held);
  }
}

}  // namespace

struct Device::State {
  explicit State(Kind kind)
      : measuring(kind == Kind::measuring), compute(Priority::normal, measuring ? &tape : nullptr) {
    prepare(compute);
    if (!compute.native()) return;
    prepare(communication.emplace(Priority::highest));
    prepare(copies.emplace(Priority::normal));
    for (Stream* stream : {&compute, &*copies})
      stream->set_progress([](void* other) { static_cast<Stream*>(other)->progress(); }, &*communication);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void prepare(Stream& stream) {
    stream.set_allocator(
        [](void* self, std::int64_t bytes) { return static_cast<State*>(self)->allocate(Category::libraries, bytes); },
        this);
    if (!measuring) timeline.watch(stream);
  }

  bool measuring;
  Tape tape;
  std::vector<Bytes> blocks;
  std::vector<SharedPages> shared;  ///< on the host
  std::vector<PinnedBytes> pinned;
  Stream compute;
  std::optional<Stream> communication, copies;  ///< on a GPU only; the host has one stream
  std::optional<Stream> saves;                  ///< likewise; made at first use
  MemoryReport memory{};
  std::int64_t allocations = 0;
  Timeline timeline;
  std::int64_t measured = Arena::alignment;  // the next address that a measuring device hands out

  static std::int64_t padded(std::int64_t bytes) {
    return std::max(round_up(bytes, Arena::alignment), Arena::alignment);
  }
  void count(Category category, std::int64_t bytes) {
    ++allocations;
    memory[static_cast<std::size_t>(category)] += padded(bytes);
  }

  SharedMemory share(Category category, std::int64_t bytes) {
    if (measuring || !on_host) return {{allocate(category, bytes), DType::u8, Shape{bytes}}};
    try {
      shared.emplace_back(padded(bytes));
    } catch (const std::bad_alloc&) {
      throw no_memory(name_of(category), bytes, memory);
    }
    count(category, bytes);
    return {{shared.back().data(), DType::u8, Shape{bytes}}, shared.back().file()};
  }

  std::byte* allocate(Category category, std::int64_t bytes) {
    const std::int64_t taking = padded(bytes);
    if (!measuring)  // over-allocates, since Kokkos aligns to 64 bytes only on the host
      blocks.push_back(taken<Bytes>(name_of(category), taking + Arena::alignment, memory));
    count(category, bytes);
    if (measuring) {
      auto* address = reinterpret_cast<std::byte*>(measured);
      measured += taking;
      return address;
    }
    if constexpr (on_host)
      ask_for_large_pages(blocks.back().data(), taking);  // else a step on the host takes 1.06 times as long
    const auto base = reinterpret_cast<std::int64_t>(blocks.back().data());
    return reinterpret_cast<std::byte*>(round_up(base, Arena::alignment));
  }
};

Device::Device(Kind kind) : state_(std::make_unique<State>(kind)) {}
Device::~Device() = default;

Stream& Device::compute() { return state_->compute; }
Stream& Device::communication() { return state_->communication ? *state_->communication : state_->compute; }
Stream& Device::copies() { return state_->copies ? *state_->copies : state_->compute; }
Stream& Device::saves() {
  if (!state_->compute.native()) return state_->compute;
  return state_->saves ? *state_->saves : state_->saves.emplace(Priority::normal);
}
bool Device::measuring() const { return state_->measuring; }
const Tape& Device::tape() const { return state_->tape; }
const MemoryReport& Device::memory() const { return state_->memory; }
std::int64_t Device::allocations() const { return state_->allocations; }
std::int64_t Device::host_waits() const {
  std::int64_t all = 0;
  for (const RegionTime& region : state_->timeline.regions()) all += region.waits;
  return all;
}

Tensor Device::allocate(Category category, DType type, Shape shape) {
  return {state_->allocate(category, shape.elements() * size_of(type)), type, shape};
}

SharedMemory Device::shared(Category category, std::int64_t bytes) { return state_->share(category, bytes); }

Arena Device::arena(Category category, std::int64_t bytes) {
  if (measuring()) return Arena();
  return Arena(state_->allocate(category, bytes), bytes);
}

Timeline& Device::timeline() { return state_->timeline; }
const Timeline& Device::timeline() const { return state_->timeline; }

void Device::upload(Stream& stream, const Tensor& to, const void* from) {
  state_->timeline.count_wait();
  if (stream.dry() || to.bytes() == 0) return;
  Kokkos::deep_copy(space_of(stream), device_bytes(to), host_bytes(from, to));
}

void Device::upload(Stream& stream, const DeviceImage& table) {
  upload(stream, {table.memory(), DType::u8, Shape{table.bytes()}}, table.image());
}

void Device::download(Stream& stream, void* to, const Tensor& from) {
  if (stream.dry() || from.bytes() == 0) return state_->timeline.count_wait();
  // A copy to pageable memory blocks inside the driver, where no watchdog runs: wait for the stream here first.
  wait(stream.record());
  Kokkos::deep_copy(space_of(stream), host_bytes(to, from), device_bytes(from));
  for (const Event copied = stream.record(); !copied.reached();) sched_yield();
}

std::span<std::byte> Device::pinned(std::int64_t bytes) {
  ++state_->allocations;
  if (measuring()) return {};
  state_->pinned.push_back(taken<PinnedBytes>("pinned blocks of the host", bytes, state_->memory));
  return {state_->pinned.back().data(), static_cast<std::size_t>(bytes)};
}

Event Device::send(Stream& stream, const Tensor& to, const void* from) {
  if (stream.dry() || to.bytes() == 0) return {};
  Kokkos::deep_copy(space_of(stream), device_bytes(to), host_bytes(from, to));
  return stream.record();
}

Event Device::fetch(Stream& stream, void* to, const Tensor& from) {
  if (stream.dry() || from.bytes() == 0) return {};
  Kokkos::deep_copy(space_of(stream), host_bytes(to, from), device_bytes(from));
  return stream.record();
}

void Device::wait(const Event& event) {
  state_->timeline.count_wait();
  for (; !event.reached(); sched_yield()) communication().progress();
}

}  // namespace tessera
