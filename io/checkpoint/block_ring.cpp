#include "io/checkpoint/block_ring.hpp"

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

// Reading: a disk wants several requests at once. Many places: a slow request delays the owner only when all are taken.
constexpr std::size_t places_to_read = 20;
constexpr int readers = 4;
// Writing: while one thread waits for the disk, the other hands it what was written.
constexpr std::size_t places_to_write = 4;
constexpr int writers = 2;

}  // namespace

BlockRing::BlockRing(std::size_t numbers, Filled filled, Work work)
    : numbers_(numbers),
      threads_fill_(filled == Filled::by_threads),
      work_(std::move(work)),
      memory_(threads_fill_ ? places_to_read : places_to_write),
      ready_(threads_fill_ ? places_to_read : places_to_write, !threads_fill_) {
  for (int i = 0; i < (threads_fill_ ? readers : writers); ++i)
    threads_.emplace_back([this](const std::stop_token& stop) { run(stop); });
}

std::span<std::byte> BlockRing::next() {
  std::unique_lock lock(mutex_);
  give_back();
  const std::size_t place = given_ % ready_.size();
  changed_.wait(lock, [&] { return ready_[place] || failure_; });
  if (failure_) std::rethrow_exception(failure_);
  owns_ = true;
  return memory_[place];
}

void BlockRing::finish() {
  std::unique_lock lock(mutex_);
  give_back();
  changed_.wait(lock, [this] { return std::ranges::count(ready_, false) == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

void BlockRing::give_back() {
  if (!std::exchange(owns_, false)) return;
  ready_[given_++ % ready_.size()] = false;
  changed_.notify_all();
}

void BlockRing::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto may_begin = [this] { return begun_ == numbers_ || begun_ < given_ + (threads_fill_ ? ready_.size() : 0); };
  while (changed_.wait(lock, stop, may_begin) && begun_ < numbers_ && !stop.stop_requested()) {
    const std::size_t number = begun_++, place = number % ready_.size();
    std::exception_ptr failure = failure_;
    lock.unlock();
    if (!failure) try {
        work_(number, memory_[place]);
      } catch (...) {
        failure = std::current_exception();
      }
    lock.lock();
    failure_ = failure_ ? failure_ : failure;
    ready_[place] = true;
    changed_.notify_all();
  }
}

}  // namespace tessera
