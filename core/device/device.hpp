#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>

#include "kernels/base/device_table.hpp"
#include "kernels/base/stream.hpp"

namespace tessera {

/// What memory is for. A run's report and `tessera plan` have one line for each category.
enum class Category : std::uint8_t {
  weights,
  masters,
  gradients,
  optimizer,
  staging,
  activations,
  batch,
  libraries,  ///< workspaces of kernels and of libraries
  count
};
constexpr const char* name_of(Category c) {
  constexpr const char* names[] = {"weights", "masters",     "gradients", "optimizer",
                                   "staging", "activations", "batch",     "libraries"};
  return names[static_cast<int>(c)];
}
using MemoryReport = std::array<std::int64_t, static_cast<std::size_t>(Category::count)>;
inline std::int64_t total(const MemoryReport& memory) {
  return std::accumulate(memory.begin(), memory.end(), std::int64_t{0});
}

class Timeline;

/// Memory that other ranks of this host may open: see Communicator::reach().
struct SharedMemory {
  Tensor bytes;   ///< u8
  int file = -1;  ///< the file behind it, on the host; a GPU's needs none
};

/// One rank's execution and memory: four streams, every allocation of the model's and the step's memory, the
/// transfers between host and device. One thread uses it.
///  compute: the model, the optimizer, and all else that has no stream of its own.
///  communication, of the highest priority: every collective of the rank.
///  copies: the local sums of reductions, overlapped with the rest of backward.
///  saves: the snapshot of an asynchronous save, overlapped with the next step until its update.
/// On the host the four are one stream.
class Device {
 public:
  enum class Kind { real, measuring };
  /// A measuring device is for planning: it counts allocations, its addresses must not be dereferenced, and its streams
  /// run nothing.
  explicit Device(Kind kind = Kind::real);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Stream& compute();
  Stream& communication();
  Stream& copies();
  Stream& saves();
  bool measuring() const;
  /// What a measuring device's streams have recorded: see Tape.
  const Tape& tape() const;

  /// Uninitialised memory, 256-byte aligned, owned by the device until it ends. Throws std::system_error, on this rank
  /// alone, if there is no memory left. Local.
  Tensor allocate(Category category, DType type, Shape shape);
  /// An arena of `bytes` of such memory; on a measuring device, an arena that measures.
  Arena arena(Category category, std::int64_t bytes);
  /// Such memory that other ranks may open; like an allocation of as many bytes. Zero at first on the host.
  SharedMemory shared(Category category, std::int64_t bytes);
  /// Bytes held per category, and the number of allocations.
  const MemoryReport& memory() const;
  std::int64_t allocations() const;

  /// Blocking copies between host memory and the device, ordered on `stream`: download() returns once the bytes are
  /// there, upload() once `from` may change.
  void upload(Stream& stream, const Tensor& to, const void* from);
  /// The same of a kernel's table, to the memory to which it is bound.
  void upload(Stream& stream, const DeviceImage& table);
  void download(Stream& stream, void* to, const Tensor& from);

  /// Page-locked host memory, uninitialised, owned by the device until it ends.
  std::span<std::byte> pinned(std::int64_t bytes);
  /// Non-blocking copies from and to pinned memory, ordered on `stream`. The host must leave that memory alone until
  /// the event is reached.
  Event send(Stream& stream, const Tensor& to, const void* from);
  Event fetch(Stream& stream, void* to, const Tensor& from);
  /// Blocks the host until the event is reached, and calls the communication's progress hook meanwhile.
  void wait(const Event& event);
  /// Number of times that the host has waited, upload() and download() included; the same in host and GPU builds.
  std::int64_t host_waits() const;

  /// This rank's time by the regions of core/device/region.hpp.
  Timeline& timeline();
  const Timeline& timeline() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
