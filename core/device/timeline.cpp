#include "core/device/timeline.hpp"

#include <algorithm>
#include <chrono>

namespace tessera {
namespace {

/// Whether a region may be outermost: it contains others rather than being part of one.
bool stands_alone(RegionName name) {
  return name == RegionName::step || name == RegionName::evaluate || name == RegionName::report;
}

double seconds(std::int64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

/// Time in which stretches of both lists run (their intersection). Each list is sorted and does not overlap itself.
std::int64_t common(const std::vector<Stretch>& a, const std::vector<Stretch>& b) {
  std::int64_t sum = 0;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end(); x->end < y->end ? ++x : ++y)
    sum += std::max<std::int64_t>(0, std::min(x->end, y->end) - std::max(x->begin, y->begin));
  return sum;
}

}  // namespace

std::int64_t host_nanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

RegionName Timeline::counted(RegionName name) const {
  if (open_.empty()) return stands_alone(name) ? name : RegionName::outside;
  const RegionName outermost = open_.front().counts_as;
  return outermost == RegionName::step ? name : outermost;
}

void Timeline::enter(Stream& stream, RegionName name, const Transfer& transfer) {
  const RegionName counts_as = counted(name);
  sums_[static_cast<std::size_t>(counts_as)].name = counts_as;
  const std::int64_t now = host_nanoseconds();
  Open own{counts_as, now};
  if (recording_) {
    const bool of_step = open_.empty() ? name == RegionName::step : open_.front().counts_as == RegionName::step;
    own.kept = static_cast<int>(kept_.size());
    kept_.push_back(
        {name, transfer, &stream, of_step ? step_ : 0, open_.empty() ? -1 : open_.back().kept, 0, now, now});
    passages_.push_back({marks_.add(stream), TimeMarks::none});
  }
  open_.push_back(own);
}

void Timeline::leave(Stream& stream) {
  const Open own = open_.back();
  open_.pop_back();
  if (own.kept >= 0 && recording_) passages_[static_cast<std::size_t>(own.kept)].end = marks_.add(stream);
  const std::int64_t now = host_nanoseconds();
  if (own.kept >= 0) kept_[static_cast<std::size_t>(own.kept)].end = now;
  sums_[static_cast<std::size_t>(own.counts_as)].seconds += seconds(now - own.begin - own.inside);
  if (!open_.empty()) open_.back().inside += now - own.begin;
}

std::vector<RegionTime> Timeline::regions() const {
  std::vector<RegionTime> passed{sums_.front()};
  std::copy_if(sums_.begin() + 1, sums_.end(), std::back_inserter(passed),
               [](const RegionTime& sum) { return sum.name != RegionName::outside; });
  return passed;
}

void Timeline::record(Stream& stream) {
  kept_.clear();
  passages_.clear();
  marks_.start(stream);
  recording_ = true;
}

void Timeline::carried(const Stream& stream, const Transfer& transfer, int lane, std::int64_t begin) {
  if (!recording_) return;
  kept_.push_back({RegionName::collective, transfer, &stream, step_, -1, lane, begin, host_nanoseconds()});
  passages_.push_back({});
}

std::vector<Stretch> Timeline::on_device() const {
  std::vector<Stretch> reached;
  std::vector<int> place(kept_.size(), -1);
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const auto begin = marks_.time(passages_[i].begin), end = marks_.time(passages_[i].end);
    if (!begin || !end) continue;
    Stretch one = kept_[i];
    one.begin = *begin;
    one.end = *end;
    const auto elsewhere = [&](int around) {
      const auto at = static_cast<std::size_t>(around);
      return kept_[at].stream != one.stream || place[at] < 0;
    };
    while (one.around >= 0 && elsewhere(one.around)) one.around = kept_[static_cast<std::size_t>(one.around)].around;
    if (one.around >= 0) one.around = place[static_cast<std::size_t>(one.around)];
    place[i] = static_cast<int>(reached.size());
    reached.push_back(one);
  }
  return reached;
}

DeviceTime time_of(const std::vector<Stretch>& stretches, const Stream& compute, const Stream& communication) {
  DeviceTime time;
  std::vector<Stretch> waiting, collectives;
  for (const Stretch& one : stretches) {
    if (one.step == 0) continue;
    const double took = seconds(one.end - one.begin);
    if (one.stream == &communication && one.name == RegionName::collective) {
      collectives.push_back(one);
      time.communication += took;
    }
    if (one.stream != &compute) continue;
    if (one.name == RegionName::step) ++time.steps, time.seconds += took;
    if (one.name == RegionName::waiting) waiting.push_back(one);
    time.regions[static_cast<std::size_t>(one.name)] += took;
    if (one.around >= 0)
      time.regions[static_cast<std::size_t>(stretches[static_cast<std::size_t>(one.around)].name)] -= took;
  }
  time.exposed = seconds(common(waiting, collectives));
  return time;
}

}  // namespace tessera
