#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/stream.hpp"

namespace tessera {

/// What memory is for. The report of a run and `tessera plan` have one line each.
enum class Category : std::uint8_t { weights, masters, gradients, optimizer, staging, activations, batch, count };
constexpr const char* name_of(Category c) {
  constexpr const char* names[] = {"weights", "masters", "gradients", "optimizer", "staging", "activations", "batch"};
  return names[static_cast<int>(c)];
}
using MemoryReport = std::array<std::int64_t, static_cast<std::size_t>(Category::count)>;

/// Host time spent under one name so far.
struct RegionTime {
  const char* name;
  double seconds;
};

/// One rank's execution and memory: three streams (compute, communication, copy), every allocation, the transfers
/// between host and device. The only place that allocates device memory. On the host the three streams are one.
class Device {
 public:
  enum class Kind { real, measuring };
  /// A measuring device hands out addresses that must not be followed and streams that run nothing: whatever is built
  /// on it is planned, not done.
  explicit Device(Kind kind = Kind::real);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Stream& compute();
  Stream& communication();
  Stream& copy();
  bool measuring() const;
  /// The record of a measuring device's streams.
  const Tape& tape() const;

  /// Uninitialised, 256-byte aligned, owned by the device until it ends.
  Tensor allocate(Category category, DType type, Shape shape);
  /// The same, as an arena of `bytes`; on a measuring device, one that measures.
  Arena arena(Category category, std::int64_t bytes);
  /// Bytes held per category, and how often memory was asked for.
  const MemoryReport& memory() const;
  std::int64_t allocations() const;

  /// Bytes of equal size between host memory and the device, ordered on `stream`. download() waits for the host to
  /// have them; it is one of the counted host waits.
  void upload(Stream& stream, const Tensor& to, const void* from);
  void download(Stream& stream, void* to, const Tensor& from);
  std::int64_t host_waits() const;

  /// Adds to a region's time; Region calls it.
  void spent(const char* name, double seconds);
  const std::vector<RegionTime>& regions() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
