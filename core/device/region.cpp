#include "core/device/region.hpp"

#include <Kokkos_Core.hpp>

#include "core/device/timeline.hpp"

namespace tessera {

Region::Region(Stream& stream, RegionName name, const Transfer& transfer)
    : stream_(stream), timeline_(Timeline::of(stream)) {
  if (!timeline_) return;
  Kokkos::Profiling::pushRegion(name_of(name));
  timeline_->enter(stream, name, transfer);
}

Region::~Region() {
  if (!timeline_) return;
  timeline_->leave(stream_);
  Kokkos::Profiling::popRegion();
}

}  // namespace tessera
