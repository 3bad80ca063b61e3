// A library that CUDA loads into any program and that prints, at its end, where the GPU's time went:
//   CUDA_INJECTION64_PATH=.../libkernel_times.so tessera train DECK
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/device/kernel_name.hpp"

namespace {

struct Total {
  std::int64_t calls = 0;
  double seconds = 0;
};
// Never destroyed: the report runs when the program's own objects have ended.
std::map<std::string, Total>& totals() {
  static auto* const all = new std::map<std::string, Total>;
  return *all;
}
std::mutex guard;
std::uint64_t first = ~std::uint64_t{0}, last = 0;

void count(const std::string& name, std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard lock(guard);
  Total& total = totals()[name];
  ++total.calls;
  total.seconds += 1e-9 * static_cast<double>(end - begin);
  first = std::min(first, begin);
  last = std::max(last, end);
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
      count("copy", copy->start, copy->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      count("fill", fill->start, fill->end);
    }
  }
  std::free(buffer);
}

void report() {
  cuptiActivityFlushAll(1);
  std::vector<std::pair<std::string, Total>> list(totals().begin(), totals().end());
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double busy = 0;
  for (const auto& [name, total] : list) busy += total.seconds;
  std::fprintf(stderr, "kernels %.3f s of %.3f s from the first to the last\n      ms  share  calls  us each  kernel\n",
               busy, first < last ? 1e-9 * static_cast<double>(last - first) : 0.0);
  for (const auto& [name, total] : list)
    std::fprintf(stderr, "%8.2f %5.1f%% %6ld %8.1f  %s\n", 1e3 * total.seconds, 100 * total.seconds / busy,
                 static_cast<long>(total.calls), 1e6 * total.seconds / static_cast<double>(total.calls), name.c_str());
}

}  // namespace

extern "C" int InitializeInjection() {
  cuptiActivityRegisterCallbacks(give, take);
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    cuptiActivityEnable(kind);
  std::atexit(report);
  return 1;
}
