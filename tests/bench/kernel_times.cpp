// A library that CUDA loads into any program. At the program's end it prints the GPU's time by kernel. It prints too
// after which calls the GPU was idle (for example a read by the host that the next launch waits for):
//   CUDA_INJECTION64_PATH=.../libkernel_times.so tessera train DECK
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/device/kernel_name.hpp"

namespace {

struct Total {
  std::int64_t calls = 0;
  double seconds = 0;
  std::vector<double> idle;  ///< idle seconds of the GPU after each call
};
/// One kernel or copy, in nanoseconds of the GPU's clock.
struct Span {
  std::uint64_t begin, end;
  Total* total;
};
// Never destroyed, since the report runs after the program's own objects have been destroyed.
std::map<std::string, Total>& totals() {
  static auto* const all = new std::map<std::string, Total>;
  return *all;
}
std::vector<Span>& spans() {
  static auto* const all = new std::vector<Span>;
  return *all;
}
std::mutex guard;

void count(const std::string& name, std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard lock(guard);
  Total& total = totals()[name];
  ++total.calls;
  total.seconds += 1e-9 * static_cast<double>(end - begin);
  spans().push_back({begin, end, &total});
}

/// Attributes each idle gap to the work that ended last before it. Returns the time from the first begin to the last
/// end.
double share_out_idle_time() {
  std::vector<Span>& all = spans();
  std::sort(all.begin(), all.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  const Span* last = nullptr;
  for (const Span& span : all) {
    if (last)
      last->total->idle.push_back(span.begin > last->end ? 1e-9 * static_cast<double>(span.begin - last->end) : 0);
    if (!last || span.end > last->end) last = &span;
  }
  return last ? 1e-9 * static_cast<double>(last->end - all.front().begin) : 0;
}

/// Leaves out the first launch of a kernel, which loads it and would distort the mean.
double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

const char* name_of(std::uint8_t copy) {
  switch (copy) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "copy to the device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "copy to the host";
    default: return "copy";
  }
}

void give(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
  constexpr std::size_t bytes = std::size_t{8} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, bytes));
  *size = bytes;
  *records = 0;
}

void take(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      count(tessera::readable_kernel(kernel->name), kernel->start, kernel->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      count(name_of(copy->copyKind), copy->start, copy->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      count("fill", fill->start, fill->end);
    }
  }
  std::free(buffer);
}

void report() {
  cuptiActivityFlushAll(1);
  const double seconds = share_out_idle_time();
  std::vector<std::pair<std::string, Total>> list(totals().begin(), totals().end());
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double busy = 0;
  for (const auto& [name, total] : list) busy += total.seconds;
  std::fprintf(stderr, "kernels %.3f s of %.3f s from the first to the last\n", busy, seconds);
  std::fprintf(stderr, "      ms  share  calls  us each  then idle  kernel\n");
  for (const auto& [name, total] : list)
    std::fprintf(stderr, "%8.2f %5.1f%% %6ld %8.1f %10.1f  %s\n", 1e3 * total.seconds, 100 * total.seconds / busy,
                 static_cast<long>(total.calls), 1e6 * total.seconds / static_cast<double>(total.calls),
                 1e6 * median(total.idle), name.c_str());
}

}  // namespace

extern "C" int InitializeInjection() {
  static bool begun = false;
  if (std::exchange(begun, true)) return 1;  // CUDA calls this function repeatedly
  cuptiActivityRegisterCallbacks(give, take);
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    cuptiActivityEnable(kind);
  std::atexit(report);
  return 1;
}
