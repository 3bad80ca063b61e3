#include "core/device/kernel_log.hpp"

#if __has_include(<cupti.h>)

#include <cuda_runtime.h>
#include <cupti.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/device/kernel_name.hpp"
#include "core/device/marks.hpp"

namespace tessera {
namespace {

constexpr CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMSET};

/// CUPTI, which is loaded when it is first asked for, since a machine that runs programs may lack it.
struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiGetStreamIdEx) stream_id = nullptr;
  decltype(&cuptiGetResultString) text = nullptr;
  std::string missing;

  Cupti() {
    const std::string name = "libcupti.so." + std::to_string(CUDART_VERSION / 1000);
    void* library = ::dlopen(name.c_str(), RTLD_NOW);
    if (!library) library = ::dlopen(TESSERA_CUPTI, RTLD_NOW);  // where it was when this was built
    if (!library) {
      missing = name + " (CUPTI, of the CUDA toolkit) cannot be loaded: set LD_LIBRARY_PATH to its folder";
      return;
    }
    find(library, "cuptiActivityRegisterCallbacks", register_callbacks);
    find(library, "cuptiActivityEnable", enable);
    find(library, "cuptiActivityDisable", disable);
    find(library, "cuptiActivityFlushAll", flush);
    find(library, "cuptiActivityGetNextRecord", next_record);
    find(library, "cuptiGetTimestamp", timestamp);
    find(library, "cuptiGetStreamIdEx", stream_id);
    find(library, "cuptiGetResultString", text);
  }

 private:
  template <class F>
  void find(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(::dlsym(library, name));
    if (!function) missing = std::string("CUPTI has no ") + name;
  }
};

const Cupti& cupti() {
  static const Cupti* const loaded = new Cupti;  // its threads outlive static objects
  return *loaded;
}

/// The records that CUPTI's thread has delivered so far.
struct Brought {
  std::mutex guard;
  std::vector<KernelRun> runs;  ///< by CUPTI's clock
  std::unordered_map<std::string, std::string> names;

  void add(const char* symbol, std::uint32_t stream, std::uint64_t begin, std::uint64_t end) {
    if (end < begin || begin == 0) return;
    const auto [known, fresh] = names.try_emplace(symbol);
    if (fresh) known->second = readable_kernel(symbol);
    runs.push_back({known->second, stream, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)});
  }
};

Brought& brought() {
  static Brought* const all = new Brought;
  return *all;
}

void CUPTIAPI give(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
  constexpr std::size_t bytes = std::size_t{8} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, bytes));
  *size = *buffer ? bytes : 0;
  *records = 0;
}

void CUPTIAPI take_records(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  Brought& all = brought();
  const std::lock_guard lock(all.guard);
  CUpti_Activity* record = nullptr;
  while (cupti().next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      all.add(kernel->name, kernel->streamId, kernel->start, kernel->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      all.add("copy", copy->streamId, copy->start, copy->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      all.add("fill", fill->streamId, fill->start, fill->end);
    }
  }
  std::free(buffer);
}

}  // namespace

KernelLog::KernelLog() : missing_(cupti().missing) {
  if (!missing_.empty()) return;
  brought().runs.clear();
  CUptiResult code = cupti().register_callbacks(give, take_records);
  for (const CUpti_ActivityKind kind : kinds)
    if (code == CUPTI_SUCCESS) code = cupti().enable(kind);
  open_ = code == CUPTI_SUCCESS;
  if (open_) return;
  const char* why = "";
  cupti().text(code, &why);
  missing_ = std::string("CUPTI: ") + why + " (another profiler that is attached?)";
}

KernelLog::~KernelLog() { take(); }

std::vector<KernelRun> KernelLog::take() {
  if (!std::exchange(open_, false)) return {};
  for (const CUpti_ActivityKind kind : kinds) cupti().disable(kind);
  cupti().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  std::uint64_t now = 0;
  cupti().timestamp(&now);
  const std::int64_t ahead = host_nanoseconds() - static_cast<std::int64_t>(now);
  Brought& all = brought();
  const std::lock_guard lock(all.guard);
  std::vector<KernelRun> runs = std::exchange(all.runs, {});
  for (KernelRun& run : runs) {
    run.begin += ahead;
    run.end += ahead;
  }
  std::sort(runs.begin(), runs.end(), [](const KernelRun& a, const KernelRun& b) { return a.begin < b.begin; });
  return runs;
}

std::uint32_t KernelLog::number_of(const Stream& stream) const {
  std::uint32_t number = 0;
  if (missing_.empty()) cupti().stream_id(nullptr, static_cast<CUstream>(stream.native()), 0, &number);
  return number;
}

}  // namespace tessera

#else

namespace tessera {

KernelLog::KernelLog()
    : missing_("this program was built without CUPTI's headers (extras/CUPTI of the CUDA toolkit)") {}
KernelLog::~KernelLog() = default;
std::vector<KernelRun> KernelLog::take() { return {}; }
std::uint32_t KernelLog::number_of(const Stream&) const { return 0; }

}  // namespace tessera

#endif
