#include "io/checkpoint/read_ahead.hpp"

#include <utility>

#include "kernels/base/index.hpp"

namespace tessera {
namespace {

constexpr std::int64_t block_bytes = 2 * ReadAhead::most_bytes;
constexpr std::int64_t bytes_ahead = std::int64_t{16} << 20;  // on their way from the disk
constexpr std::int64_t alignment = 8;

}  // namespace

ReadAhead::ReadAhead(const TensorSource& source, std::vector<ReadRequest> requests)
    : source_(source), requests_(std::move(requests)) {
  for (Block& block : blocks_) free_.push_back(&block);
  reader_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

std::byte* ReadAhead::next() {
  if (taken_ && taken_requests_ == taken_->begins.size() && !taken_->failure) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::exchange(taken_, nullptr));
    changed_.notify_all();
  }
  if (!taken_) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !full_.empty(); });
    taken_ = full_.front();
    full_.pop_front();
    taken_requests_ = 0;
  }
  if (taken_requests_ == taken_->begins.size()) std::rethrow_exception(taken_->failure);
  return taken_->memory.data() + taken_->begins[taken_requests_++];
}

void ReadAhead::run(const std::stop_token& stop) {
  while (read_ < requests_.size()) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [this] { return !free_.empty(); }) || stop.stop_requested()) return;
    Block& block = *free_.front();
    free_.pop_front();
    lock.unlock();
    fill(block);
    lock.lock();
    full_.push_back(&block);
    changed_.notify_all();
    if (block.failure) return;
  }
}

void ReadAhead::fill(Block& block) {
  block.memory.resize(static_cast<std::size_t>(block_bytes));
  block.begins.clear();
  std::int64_t begin = 0;
  try {
    for (; read_ < requests_.size() && begin + requests_[read_].bytes() <= block_bytes; ++read_) {
      expect_more();
      const ReadRequest& request = requests_[read_];
      source_.read(*request.tensor, request.first, request.count, block.memory.data() + begin);
      block.begins.push_back(begin);
      begin += round_up(request.bytes(), alignment);
      bytes_expected_ -= request.bytes();
    }
  } catch (...) {
    block.failure = std::current_exception();
  }
}

void ReadAhead::expect_more() {
  for (; expected_ < requests_.size() && bytes_expected_ < bytes_ahead; ++expected_) {
    const ReadRequest& request = requests_[expected_];
    source_.expect(*request.tensor, request.first, request.count);
    bytes_expected_ += request.bytes();
  }
}

}  // namespace tessera
