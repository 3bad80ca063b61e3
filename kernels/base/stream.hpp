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

/// A point in a stream's order. Travels inside Pending and the step's tokens; empty on the host.
class Event {};

/// One execution-space instance with its scratch and its library handles; the order of work is the order of calls.
/// Created by Device alone. A dry stream checks shapes, counts, and runs nothing.
class Stream {
 public:
  using Progress = void (*)(void* context);

  /// `instance` is the Kokkos execution space (null: the default one), known to launch.hpp only.
  explicit Stream(void* instance = nullptr, Tape* tape = nullptr) : instance_(instance), tape_(tape) {}
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

  Event record() { return {}; }
  void wait(const Event&) {}

  void* instance() const { return instance_; }

  /// The stream's library state of type T (GEMM plans, handles), made at first use.
  template <class T> T& library() {
    for (auto& [key, value] : libraries_)
      if (key == std::type_index(typeid(T))) return *static_cast<T*>(value.get());
    libraries_.emplace_back(std::type_index(typeid(T)), std::make_shared<T>());
    return *static_cast<T*>(libraries_.back().second.get());
  }

 private:
  void* instance_;
  Tape* tape_;
  Progress progress_ = nullptr;
  void* progress_context_ = nullptr;
  std::int64_t launches_ = 0;
  double waited_ = 0;
  std::vector<std::pair<std::type_index, std::shared_ptr<void>>> libraries_;
};

}  // namespace tessera
