#pragma once
#include <cstdint>
#include <memory>
#include <typeindex>
#include <utility>
#include <vector>

#include "kernels/base/arena.hpp"

namespace tessera {

/// What one dry pass would have done.
struct Tape {
  double flops = 0;  ///< of GEMMs and attention
};

/// A point in a stream's order, for other streams and the host to wait for. Travels inside Pending and the step's blocks.
/// On the host, where work has ended when its call returns, it says the time only. Must not outlive its stream; once that has recorded
/// Stream::events_kept further ones it stands for a later point.
class Event {
 public:
  Event() = default;
  /// Whether the device has got there. Never blocks.
  bool reached() const;
  /// Between two events that have been reached, of a stream of the same device.
  double seconds_since(const Event& earlier) const;

 private:
  friend class Stream;
  void* handle_ = nullptr;
  std::int64_t host_time_ = 0;  ///< on the host: nanoseconds of its steady clock
};

/// Work of one or several streams, recorded once, that runs again as a whole. Empty: nothing was recorded.
class Graph {
 public:
  Graph() = default;
  explicit operator bool() const { return executable_ != nullptr; }

 private:
  friend class Stream;
  std::shared_ptr<void> executable_;
};

enum class Priority : std::uint8_t { normal, highest };

/// One execution-space instance with its scratch and its library handles; the order of work is the order of calls.
/// Created by Device alone. A dry stream checks shapes, counts, and runs nothing.
class Stream {
 public:
  using Progress = void (*)(void* context);
  static constexpr int events_kept = 512;

  explicit Stream(Priority priority = Priority::normal, Tape* tape = nullptr);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool dry() const { return tape_ != nullptr; }
  /// Kernels and library calls so far, dry ones included.
  std::int64_t launches() const { return launches_; }
  void count_launch() { ++launches_; }
  /// Of the tape, so that only a dry pass counts.
  void count_flops(double flops) { if (tape_) tape_->flops += flops; }

  /// Lets host communication move. Kernels call it at least once a millisecond; it never blocks.
  void progress() { if (progress_) progress_(progress_context_); }
  void set_progress(Progress f, void* context) { progress_ = f; progress_context_ = context; }

  /// Seconds that the host has waited for collectives on this stream: communication that no work hid.
  double waited() const { return waited_; }
  void count_wait(double seconds) { waited_ += seconds; }

  /// The point behind all work so far.
  Event record();
  /// What is launched from now on runs after `event`. The host goes on.
  void wait(const Event& event);

  /// Between the two, what is launched here, and on streams that wait for this one's events and are waited for again,
  /// is recorded instead of run. GPU streams only. Addresses and arguments are part of what was recorded.
  void begin_capture();
  Graph end_capture();
  bool capturing() const { return capturing_; }
  void run(const Graph& graph);

  /// The Kokkos execution space (null: the default one), known to launch.hpp only.
  void* instance() const;
  /// The cudaStream_t for libraries that take one; null on the host and where dry.
  void* native() const;

  /// The stream's library state of type T (GEMM plans, handles), made at first use.
  template <class T> T& library() {
    for (auto& [key, value] : libraries_)
      if (key == std::type_index(typeid(T))) return *static_cast<T*>(value.get());
    libraries_.emplace_back(std::type_index(typeid(T)), std::make_shared<T>());
    return *static_cast<T*>(libraries_.back().second.get());
  }

 private:
  struct Instance;
  std::shared_ptr<Instance> instance_;  // libraries end before it
  Tape* tape_;
  Progress progress_ = nullptr;
  void* progress_context_ = nullptr;
  std::int64_t launches_ = 0;
  double waited_ = 0;
  bool capturing_ = false;
  std::vector<std::pair<std::type_index, std::shared_ptr<void>>> libraries_;
};

}  // namespace tessera
