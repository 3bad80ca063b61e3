#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/base/stream.hpp"

namespace tessera {

/// What memory is for. The report of a run and `tessera plan` have one line each.
enum class Category : std::uint8_t {
  weights,
  masters,
  gradients,
  optimizer,
  staging,
  activations,
  batch,
  libraries,  ///< workspaces of kernels and their libraries
  count
};
constexpr const char* name_of(Category c) {
  constexpr const char* names[] = {"weights", "masters",     "gradients", "optimizer",
                                   "staging", "activations", "batch",     "libraries"};
  return names[static_cast<int>(c)];
}
using MemoryReport = std::array<std::int64_t, static_cast<std::size_t>(Category::count)>;

class Timeline;

/// One rank's execution and memory: four streams, every allocation, the transfers between host and device. The only
/// place that allocates device memory. One thread uses it.
///  compute: the model, the optimizer, and all else that has no stream of its own.
///  communication, of the highest priority: every collective of the rank.
///  copies: the local sums of reductions, under the rest of backward.
///  saves: the copy of a state that is saved while training goes on, under the next step until its update.
/// On the host they are one.
class Device {
 public:
  enum class Kind { real, measuring };
  /// A measuring device is for planning: its addresses must not be dereferenced and its streams run nothing; it counts
  /// what is asked of it.
  explicit Device(Kind kind = Kind::real);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Stream& compute();
  Stream& communication();
  Stream& copies();
  Stream& saves();
  bool measuring() const;
  /// The record of a measuring device's streams.
  const Tape& tape() const;

  /// Uninitialised, 256-byte aligned, owned by the device until it ends. No memory: std::system_error, on this rank.
  Tensor allocate(Category category, DType type, Shape shape);
  /// The same, as an arena of `bytes`; on a measuring device, one that measures.
  Arena arena(Category category, std::int64_t bytes);
  /// Bytes held per category, and how often memory was asked for.
  const MemoryReport& memory() const;
  std::int64_t allocations() const;

  /// Blocking copies between host memory and the device, ordered on `stream`: download() returns once the bytes are
  /// there, upload() once `from` may change.
  void upload(Stream& stream, const Tensor& to, const void* from);
  void download(Stream& stream, void* to, const Tensor& from);

  /// Page-locked host memory, uninitialised, owned by the device until it ends.
  std::span<std::byte> pinned(std::int64_t bytes);
  /// Non-blocking copies from and to pinned memory, which belongs to the copy until the event is reached.
  Event send(Stream& stream, const Tensor& to, const void* from);
  Event fetch(Stream& stream, void* to, const Tensor& from);
  /// Blocks the host until the event is reached, and lets communication progress meanwhile.
  void wait(const Event& event);
  /// Waits of the host so far, those of upload() and download() included; counted alike in host and GPU builds.
  std::int64_t host_waits() const;

  /// Where its time goes, by the regions of core/device/region.hpp.
  Timeline& timeline();
  const Timeline& timeline() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
