#include <cuda_runtime.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/device/marks.hpp"
#include "kernels/base/cuda.cuh"
#include "kernels/base/error.hpp"

namespace tessera {
namespace {

}  // namespace

struct TimeMarks::State {
  std::vector<cudaEvent_t> events;  ///< the first is the clock's origin
  std::int64_t origin = 0;          ///< its time on the host

  void drop() {
    for (cudaEvent_t event : events) cudaEventDestroy(event);
    events.clear();
  }
};

TimeMarks::TimeMarks() : state_(std::make_unique<State>()) {}
TimeMarks::~TimeMarks() { state_->drop(); }

void TimeMarks::start(Stream& stream) {
  state_->drop();
  add(stream);
  state_->origin = host_nanoseconds();
}

int TimeMarks::add(Stream& stream) {
  if (!stream.native()) return none;
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "cudaEventCreate");
  state_->events.push_back(event);
  check_cuda(cudaEventRecord(event, static_cast<cudaStream_t>(stream.native())), "cudaEventRecord");
  return static_cast<int>(state_->events.size()) - 1;
}

std::optional<std::int64_t> TimeMarks::time(int mark) const {
  if (mark == none) return std::nullopt;
  const cudaEvent_t event = state_->events[static_cast<std::size_t>(mark)];
  const cudaError_t code = cudaEventQuery(event);
  if (code == cudaErrorNotReady) return std::nullopt;
  check_cuda(code, "cudaEventQuery");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, state_->events.front(), event), "cudaEventElapsedTime");
  return state_->origin + std::llround(1e6 * static_cast<double>(milliseconds));
}

}  // namespace tessera
