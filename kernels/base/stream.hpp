#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include "kernels/base/arena.hpp"

namespace tessera {

/// Counts of the work of one dry pass.
struct Tape {
  double flops = 0;  ///< FLOPs of GEMMs and attention
};

/// A point in a stream's order, for other streams and the host to wait for. In a host build, where work has ended when
/// its call returns, it holds the time only. Must not outlive its stream; after Stream::events_kept further records (of
/// its kind) it stands for a later point of that stream.
class Event {
 public:
  Event() = default;
  /// Whether the device has reached it. Never blocks.
  bool reached() const;
  /// Time between two events of Stream::record_time() on one device, both of which have been reached.
  double seconds_since(const Event& earlier) const;

 private:
  friend class Stream;
  void* handle_ = nullptr;
  std::int64_t host_time_ = 0;  ///< on the host: nanoseconds of its steady clock
};

/// A captured CUDA graph: work of one or several streams that is replayed as a whole. May be empty.
class Graph {
 public:
  Graph() = default;
  explicit operator bool() const { return executable_ != nullptr; }

 private:
  friend class Stream;
  std::shared_ptr<void> executable_;
};

enum class Priority : std::uint8_t { normal, highest };

/// Memory that a library or kernel needs for one purpose on a stream.
struct Workspace {
  const char* purpose;
  std::int64_t bytes;
  std::byte* memory;
};

/// One execution-space instance with its scratch and its library handles; the order of work is the order of calls.
/// Created by Device alone. A dry stream checks shapes, counts, and runs nothing.
class Stream {
 public:
  using Progress = void (*)(void* context);
  using Allocate = std::byte* (*)(void* context, std::int64_t bytes);
  static constexpr int events_kept = 4096, times_kept = 64;

  explicit Stream(Priority priority = Priority::normal, Tape* tape = nullptr);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool dry() const { return tape_ != nullptr; }
  /// Kernels and library calls so far, dry ones included.
  std::int64_t launches() const { return launches_; }
  /// Called before each launch. Keeps the host at most a few hundred launches ahead of its GPU.
  void count_launch() { if (++launches_ % launches_between_marks == 0) keep_in_reach(); }
  /// Adds to the tape's FLOPs. Only a dry pass (planning) has a tape.
  void count_flops(double flops) { if (tape_) tape_->flops += flops; }

  /// Calls the progress hook of communication on the host. Kernels on the host call it at least once a millisecond.
  /// Never blocks.
  void progress() { if (progress_) progress_(progress_context_); }
  void set_progress(Progress f, void* context) { progress_ = f; progress_context_ = context; }

  /// Workspace of at least `bytes` for a purpose: 256-byte aligned, uninitialised, valid until a call for the same
  /// purpose asks for more. Reused in the stream's order. Null for 0 bytes. A dry stream records the need, so that a
  /// run can allocate it before its first step, and returns an address that must not be dereferenced.
  std::byte* workspace(const char* purpose, std::int64_t bytes);
  /// The workspaces asked for so far, one for each purpose, of the largest size.
  const std::vector<Workspace>& workspaces() const { return workspaces_; }
  /// Sets the allocator of workspaces (Device).
  void set_allocator(Allocate f, void* context) { allocate_ = f; allocate_context_ = context; }

  /// Records an event behind all work so far.
  Event record();
  /// Records a timing event, kept for `times_kept` further ones, whatever else is recorded.
  Event record_time();
  /// Orders all later launches behind `event`. Does not block the host.
  void wait(const Event& event);

  /// Captures a CUDA graph: launches of `work` on this stream, and on streams that wait for its events, are recorded
  /// instead of run. Addresses and arguments become part of the graph. Takes a GPU's stream, or a dry one, whose graph
  /// runs nothing. Exceptions of `work` pass through and leave the stream usable.
  Graph capture(const std::function<void()>& work);
  bool captures() const { return dry() || native() != nullptr; }  ///< whether capture() takes this stream
  bool capturing() const { return capturing_; }
  void run(const Graph& graph);

  /// The Kokkos execution space (null: the default one), known to launch.hpp only.
  void* instance() const;
  /// The cudaStream_t, for libraries; null on the host and on a dry stream.
  void* native() const;

  /// The stream's library state of type T (GEMM plans, handles), made at first use by T(stream), or T().
  template <class T> T& library() {
    for (auto& [key, value] : libraries_)
      if (key == std::type_index(typeid(T))) return *static_cast<T*>(value.get());
    if constexpr (std::is_constructible_v<T, Stream&>)
      libraries_.emplace_back(std::type_index(typeid(T)), std::make_shared<T>(*this));
    else
      libraries_.emplace_back(std::type_index(typeid(T)), std::make_shared<T>());
    return *static_cast<T*>(libraries_.back().second.get());
  }

 private:
  static constexpr std::int64_t launches_between_marks = 128;
  void keep_in_reach();
  void begin_capture();
  Graph end_capture();

  struct Instance;
  std::shared_ptr<Instance> instance_;  // declared before the libraries' state, which ends first
  Tape* tape_;
  Progress progress_ = nullptr;
  void* progress_context_ = nullptr;
  Allocate allocate_ = nullptr;
  void* allocate_context_ = nullptr;
  std::vector<Workspace> workspaces_;
  std::int64_t launches_ = 0;
  std::array<Event, 2> marks_;
  bool capturing_ = false;
  std::vector<std::pair<std::type_index, std::shared_ptr<void>>> libraries_;
};

}  // namespace tessera
