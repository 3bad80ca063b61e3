#pragma once
#include <cstdint>

#include "kernels/base/stream.hpp"

namespace tessera {

/// What a run's time goes into: the one list of regions. Closing tables and profiles name them in this order.
enum class RegionName : std::uint8_t {
  outside,  ///< what no region covers
  step,
  gradient,  ///< forward and backward
  attention,
  products,  ///< of linear layers
  experts,
  norms,
  head,  ///< with the loss
  reduce,
  update,
  publish,
  waiting,     ///< for a collective
  collective,  ///< on the stream that carries it
  evaluate,
  report,
  count
};
constexpr const char* name_of(RegionName name) {
  constexpr const char* names[] = {"outside", "step",    "gradient",      "attention", "products",
                                   "experts", "norms",   "head and loss", "reduce",    "update",
                                   "publish", "waiting", "collective",    "evaluate",  "report"};
  return names[static_cast<int>(name)];
}
inline constexpr auto region_names = static_cast<std::size_t>(RegionName::count);

/// What a collective carries.
struct Transfer {
  const char* operation = "";
  const char* label = "";
  std::int64_t bytes = 0;  ///< that this rank receives
};

class Timeline;

/// A named stretch of a rank's time, on the host and in the order of a stream: a Kokkos::Profiling region that tools
/// see, and part of the Timeline of the stream's device (of a stream without one, nothing).
class Region {
 public:
  Region(Stream& stream, RegionName name) : Region(stream, name, {}) {}
  /// The region of a collective, on the stream that carries it.
  Region(Stream& stream, const Transfer& transfer) : Region(stream, RegionName::collective, transfer) {}
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

 private:
  Region(Stream& stream, RegionName name, const Transfer& transfer);

  Stream& stream_;
  Timeline* timeline_;
};

}  // namespace tessera
