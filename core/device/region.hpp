#pragma once
#include <cstdint>

#include "kernels/base/stream.hpp"

namespace tessera {

/// The regions by which a run's time is accounted: their only list. Closing tables and profiles keep this order.
enum class RegionName : std::uint8_t {
  outside,  ///< time that no other region covers
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

/// A named stretch of a rank's time, on the host and on a stream, for as long as the object lives. It is a
/// Kokkos::Profiling region for tools, and an entry in the Timeline of the stream's device, if it has one. Local.
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
