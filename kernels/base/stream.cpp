#include "kernels/base/stream.hpp"

#include <sched.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <string_view>

#include "kernels/base/error.hpp"
#if defined(KOKKOS_ENABLE_CUDA)
#include "kernels/base/cuda.cuh"
#endif

namespace tessera {

#if defined(KOKKOS_ENABLE_CUDA)

namespace {

cudaStream_t created(Priority priority) {
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  // Non-blocking: the legacy default stream, which a library may use, must not serialise with this one.
  const int level = priority == Priority::highest ? greatest : least;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, level), "cudaStreamCreateWithPriority");
  return stream;
}

/// Whether launches on a native stream are being captured: by its own capture, or by that of a stream that it waits
/// for.
bool recorded(void* native) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(native), &status), "cudaStreamIsCapturing");
  return status == cudaStreamCaptureStatusActive;
}

/// CUDA events, all made at once, since a step must allocate nothing, and recorded in turn. Waiting for an event that
/// has been recorded again waits for more than was asked, never for less; its time would be another's.
template <int count, unsigned flags>
class Events {
 public:
  Events() {
    for (cudaEvent_t& event : events_) check_cuda(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  }
  ~Events() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  cudaEvent_t record(cudaStream_t stream) {
    const cudaEvent_t event = events_[next_++ % events_.size()];
    check_cuda(cudaEventRecord(event, stream), "cudaEventRecord");
    return event;
  }

 private:
  std::array<cudaEvent_t, count> events_{};
  std::size_t next_ = 0;
};

}  // namespace

struct Stream::Instance {
  explicit Instance(Priority priority) : stream(created(priority)), space(std::make_unique<Kokkos::Cuda>(stream)) {}
  ~Instance() {
    space.reset();
    cudaStreamDestroy(stream);
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  cudaStream_t stream;
  std::unique_ptr<Kokkos::Cuda> space;
  Events<events_kept, cudaEventDisableTiming> events, captured;  ///< an event of a capture can be asked for no longer
  Events<times_kept, cudaEventDefault> times;
};

Stream::Stream(Priority priority, Tape* tape)
    : instance_(tape ? nullptr : std::make_shared<Instance>(priority)), tape_(tape) {}

Event Stream::record() {
  Event event;
  if (!instance_) return event;
  auto& events = recorded(instance_->stream) ? instance_->captured : instance_->events;
  event.handle_ = events.record(instance_->stream);
  return event;
}

Event Stream::record_time() {
  Event event;
  if (instance_) event.handle_ = instance_->times.record(instance_->stream);
  return event;
}

void Stream::wait(const Event& event) {
  if (!instance_ || !event.handle_) return;
  check_cuda(cudaStreamWaitEvent(instance_->stream, static_cast<cudaEvent_t>(event.handle_)), "cudaStreamWaitEvent");
}

void Stream::begin_capture() {
  // Thread-local capture: other threads may still call CUDA, since a library may launch its part from one of its own.
  check_cuda(cudaStreamBeginCapture(instance_->stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

Graph Stream::end_capture() {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamEndCapture(instance_->stream, &graph), "cudaStreamEndCapture");
  const cudaError_t code = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(code, "cudaGraphInstantiate");
  Graph made;
  made.executable_ =
      std::shared_ptr<void>(executable, [](void* e) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(e)); });
  return made;
}

void Stream::run(const Graph& graph) {
  if (!instance_) return;
  const auto executable = static_cast<cudaGraphExec_t>(graph.executable_.get());
  check_cuda(cudaGraphLaunch(executable, instance_->stream), "cudaGraphLaunch");
}

void* Stream::instance() const { return instance_ ? instance_->space.get() : nullptr; }
void* Stream::native() const { return instance_ ? instance_->stream : nullptr; }

bool Event::reached() const {
  if (!handle_) return true;
  const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(handle_));
  if (code != cudaErrorNotReady) check_cuda(code, "cudaEventQuery");
  return code == cudaSuccess;
}

double Event::seconds_since(const Event& earlier) const {
  float milliseconds = 0;
  check_cuda(
      cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(earlier.handle_), static_cast<cudaEvent_t>(handle_)),
      "cudaEventElapsedTime");
  return milliseconds * 1e-3;
}

#else

namespace {
bool recorded(void*) { return false; }
}  // namespace

struct Stream::Instance {};

Stream::Stream(Priority, Tape* tape) : tape_(tape) {}
Event Stream::record() {
  Event event;
  event.host_time_ = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  return event;
}
Event Stream::record_time() { return record(); }
void Stream::wait(const Event&) {}
void Stream::begin_capture() {}
Graph Stream::end_capture() { return {}; }
void Stream::run(const Graph&) {}
void* Stream::instance() const { return nullptr; }
void* Stream::native() const { return nullptr; }
bool Event::reached() const { return handle_ == nullptr; }  // the host's work has ended when its call returns
double Event::seconds_since(const Event& earlier) const {
  return static_cast<double>(host_time_ - earlier.host_time_) * 1e-9;
}

#endif

/// Waits, watching communication, before the driver's queue is full. From about a thousand pending launches on, the
/// driver blocks inside a launch; behind a collective of a dead rank it would block for ever.
void Stream::keep_in_reach() {
  if (!instance_ || recorded(native())) return;
  Event& mark = marks_[static_cast<std::size_t>(launches_ / launches_between_marks) % marks_.size()];
  for (; !mark.reached(); sched_yield()) progress();
  mark = record();
}

Graph Stream::capture(const std::function<void()>& work) {
  require(captures() && !capturing_, "Stream::capture", "takes a GPU's or a dry stream that records nothing yet");
  struct Capturing {
    bool& flag;
    explicit Capturing(bool& of) : flag(of) { flag = true; }
    ~Capturing() { flag = false; }
  };
  const Capturing now(capturing_);
  if (dry()) {
    work();
    Graph nothing;
    nothing.executable_ = std::make_shared<char>();
    return nothing;
  }
  begin_capture();
  try {
    work();
  } catch (...) {
    try {
      end_capture();
    } catch (const Error&) {  // the capture is invalid too; report the first error
    }
    throw;
  }
  return end_capture();
}

std::byte* Stream::workspace(const char* purpose, std::int64_t bytes) {
  if (bytes == 0) return nullptr;
  const auto known = std::find_if(workspaces_.begin(), workspaces_.end(), [&](const Workspace& w) {
    return std::string_view(w.purpose) == purpose;
  });
  Workspace& place = known == workspaces_.end() ? workspaces_.emplace_back(Workspace{purpose, 0, nullptr}) : *known;
  if (bytes <= place.bytes) return place.memory;
  require(tape_ || allocate_, "Stream::workspace", "takes its memory from a device");
  place.memory = tape_ ? reinterpret_cast<std::byte*>(Arena::alignment) : allocate_(allocate_context_, bytes);
  place.bytes = bytes;
  return place.memory;
}

}  // namespace tessera
