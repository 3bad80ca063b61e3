#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "core/device/marks.hpp"
#include "core/device/region.hpp"

namespace tessera {

/// Host time spent in a region so far, nested regions not counted, and how often the host waited for the device there.
struct RegionTime {
  RegionName name = RegionName::outside;
  double seconds = 0;
  std::int64_t waits = 0;
};

/// One pass through a region. Times are nanoseconds of the host's steady clock.
struct Stretch {
  RegionName name = RegionName::outside;
  Transfer transfer;               ///< what a collective carries
  const Stream* stream = nullptr;  ///< the stream of its work
  std::int64_t step = 0;           ///< the step that it is part of; 0: none
  int around = -1;                 ///< index of the enclosing stretch in the same list; -1: none
  int lane = 0;                    ///< collectives that the host carries at the same time have different lanes, from 1
  std::int64_t begin = 0, end = 0;
};

/// Profile of a rank's time by region. Sums by the host's clock are always kept. Between record() and stop() every pass
/// through a region is kept too, by the host's clock and, on a GPU, by the device's. One a Device. Local.
class Timeline {
 public:
  /// The timeline of the stream's device; null for planning, and for a stream without a device.
  static Timeline* of(Stream& stream) { return stream.library<Timeline*>(); }
  void watch(Stream& stream) { stream.library<Timeline*>() = this; }

  /// Opens and closes a region; Region calls them.
  void enter(Stream& stream, RegionName name, const Transfer& transfer);
  void leave(Stream& stream);
  /// Counts a wait of the host for the device, in the innermost region.
  void count_wait() { ++sums_[static_cast<std::size_t>(innermost())].waits; }
  /// Time by region so far, `outside` first. A region outside of a step counts as the outermost region around it, so
  /// that an evaluation's layers are part of the evaluation.
  std::vector<RegionTime> regions() const;

  /// Starts keeping every pass through a region. Work must be launched kernel by kernel: the replay of a CUDA graph
  /// passes through no region.
  void record(Stream& stream);
  void stop() { recording_ = false; }
  bool recording() const { return recording_; }
  /// Stretches from now on belong to step `number`.
  void begin_step(std::int64_t number) { step_ = number; }
  /// Adds a collective that the host carried from `begin` until now, under other regions, on `lane`.
  void carried(const Stream& stream, const Transfer& transfer, int lane, std::int64_t begin);

  /// The recorded stretches in the order of their begin; collectives that the host carried come where they ended.
  /// on_device(): those that the device has finished, on each stream ordered by their begin.
  const std::vector<Stretch>& on_host() const { return kept_; }
  std::vector<Stretch> on_device() const;

 private:
  /// A region that the host has entered and not left.
  struct Open {
    RegionName counts_as;
    std::int64_t begin;
    std::int64_t inside = 0;  ///< nanoseconds in nested regions
    int kept = -1;
  };
  struct Passage {
    int begin = TimeMarks::none, end = TimeMarks::none;
  };
  RegionName innermost() const { return open_.empty() ? RegionName::outside : open_.back().counts_as; }
  RegionName counted(RegionName name) const;

  std::array<RegionTime, region_names> sums_{};
  std::vector<Open> open_;
  bool recording_ = false;
  std::int64_t step_ = 0;
  std::vector<Stretch> kept_;
  std::vector<Passage> passages_;  ///< begin and end on the device of each stretch in kept_
  TimeMarks marks_;
};

/// A device's time over the recorded steps, by region.
struct DeviceTime {
  std::int64_t steps = 0;
  double seconds = 0;                          ///< from each step's begin to its end
  std::array<double, region_names> regions{};  ///< seconds in each region, without those inside it
  double communication = 0;                    ///< seconds in which collectives ran
  double exposed = 0;                          ///< of these, seconds in which the compute stream waited for them
};

/// Sums over the steps in `stretches`, which are ordered by their begin on each stream.
DeviceTime time_of(const std::vector<Stretch>& stretches, const Stream& compute, const Stream& communication);

}  // namespace tessera
