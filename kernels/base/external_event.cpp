#include "kernels/base/external_event.hpp"

#include <Kokkos_Core.hpp>

#include "kernels/base/error.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "kernels/base/cuda.cuh"
#endif

namespace tessera {

#if defined(KOKKOS_ENABLE_CUDA)

namespace {

cudaEvent_t made(void*& handle) {
  cudaEvent_t event = static_cast<cudaEvent_t>(handle);
  if (!event) check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  handle = event;
  return event;
}

}  // namespace

ExternalEvent::~ExternalEvent() {
  if (handle_) cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
}

void ExternalEvent::record(Stream& stream) {
  if (stream.native())
    check_cuda(cudaEventRecord(made(handle_), static_cast<cudaStream_t>(stream.native())), "cudaEventRecord");
}

void ExternalEvent::hold(Stream& stream) {
  if (!stream.native()) return;
  // During capture a plain wait would refer to an event inside the graph; cudaEventWaitExternal refers to one outside.
  const unsigned flags = stream.capturing() ? cudaEventWaitExternal : cudaEventWaitDefault;
  check_cuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.native()), made(handle_), flags),
             "cudaStreamWaitEvent");
}

bool ExternalEvent::reached() const {
  if (!handle_) return true;
  const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (code != cudaErrorNotReady) check_cuda(code, "cudaEventQuery");
  return code == cudaSuccess;
}

#else

ExternalEvent::~ExternalEvent() = default;
void ExternalEvent::record(Stream&) {}
void ExternalEvent::hold(Stream&) {}
bool ExternalEvent::reached() const { return !handle_; }  // none is ever made

#endif

}  // namespace tessera
