#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "core/device/marks.hpp"
#include "core/device/region.hpp"

namespace tessera {

/// Host time spent in a region so far, without that of regions inside it, and how often the host waited for the device
/// there.
struct RegionTime {
  RegionName name = RegionName::outside;
  double seconds = 0;
  std::int64_t waits = 0;
};

/// One passage through a region. Times are nanoseconds of the host's steady clock.
struct Stretch {
  RegionName name = RegionName::outside;
  Transfer transfer;               ///< of a collective
  const Stream* stream = nullptr;  ///< whose work it is
  std::int64_t step = 0;           ///< of which it is part; 0: of none
  int around = -1;                 ///< the stretch in which it lies, of the same list; -1: none
  int lane = 0;                    ///< collectives that the host carries at once are on different ones, from 1
  std::int64_t begin = 0, end = 0;
};

/// Where a rank's time goes, by the regions that it passes through. Always: their sums by the host's clock. Between
/// record() and stop() also every passage, by the host's clock and, on a GPU, by the device's. One a Device. Local.
class Timeline {
 public:
  /// The timeline of the stream's device; null for planning, and for a stream without a device.
  static Timeline* of(Stream& stream) { return stream.library<Timeline*>(); }
  void watch(Stream& stream) { stream.library<Timeline*>() = this; }

  /// Opens and closes a region; Region calls them.
  void enter(Stream& stream, RegionName name, const Transfer& transfer);
  void leave(Stream& stream);
  /// The host waits for the device, in the innermost region.
  void count_wait() { ++sums_[static_cast<std::size_t>(innermost())].waits; }
  /// Time by region so far, `outside` first. A region counts as itself inside a step, else as the outermost
  /// region about it, so that an evaluation's layers are part of the evaluation.
  std::vector<RegionTime> regions() const;

  /// From now on passages are kept. Work must be launched kernel by kernel: a CUDA graph passes through no region.
  void record(Stream& stream);
  void stop() { recording_ = false; }
  bool recording() const { return recording_; }
  /// Step `number` is next.
  void begin_step(std::int64_t number) { step_ = number; }
  /// A collective that the host carried beside its regions, on a lane of its own.
  void carried(const Stream& stream, const Transfer& transfer, int lane, std::int64_t begin);

  /// The recorded stretches, in the order of begins on each stream; of the device those that it has finished.
  const std::vector<Stretch>& on_host() const { return kept_; }
  std::vector<Stretch> on_device() const;

 private:
  /// A region that the host is in.
  struct Open {
    RegionName counts_as;
    std::int64_t begin;
    std::int64_t inside = 0;  ///< time of regions in it
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
  std::vector<Passage> passages_;  ///< on the device, of each that was kept
  TimeMarks marks_;
};

/// What a device's time went into.
struct DeviceTime {
  std::int64_t steps = 0;
  double seconds = 0;                          ///< from each step's begin to its end
  std::array<double, region_names> regions{};  ///< seconds in each region, without those inside it
  double communication = 0;                    ///< in which collectives ran
  double exposed = 0;                          ///< of it, while the compute stream waited for them
};

/// Sums over the steps in `stretches`, which stand in the order of begins on each stream.
DeviceTime time_of(const std::vector<Stretch>& stretches, const Stream& compute, const Stream& communication);

}  // namespace tessera
