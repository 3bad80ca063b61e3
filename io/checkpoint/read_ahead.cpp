#include "io/checkpoint/read_ahead.hpp"

#include <utility>

namespace tessera {
namespace {

constexpr std::int64_t block_bytes = 2 * ReadAhead::most_bytes;
constexpr int blocks_ahead = 4;  // of those that are being read

/// Cuts requests into parts that fill a block at most.
std::vector<std::size_t> parts_of(const std::vector<ReadRequest>& requests) {
  std::vector<std::size_t> parts{0};
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::int64_t more = bytes_in_room(requests[i]);
    if (bytes > 0 && bytes + more > block_bytes) {
      parts.push_back(i);
      bytes = 0;
    }
    bytes += more;
  }
  if (!requests.empty()) parts.push_back(requests.size());
  return parts;
}

}  // namespace

ReadAhead::ReadAhead(const TensorSource& source, std::vector<ReadRequest> requests)
    : source_(source), requests_(std::move(requests)), parts_(parts_of(requests_)) {
  const int readers = source.readers();
  blocks_.resize(static_cast<std::size_t>(readers + blocks_ahead));
  for (int i = 0; i < readers; ++i) readers_.emplace_back([this] { read_parts(); });
}

std::byte* ReadAhead::next() {
  std::unique_lock lock(mutex_);
  if (given_ == parts_[taken_ + 1]) {
    block(taken_++).full = false;
    changed_.notify_all();
  }
  Block& giving = block(taken_);
  changed_.wait(lock, [&] { return giving.full; });
  if (!requests_[given_].values) std::rethrow_exception(giving.failure);
  return requests_[given_++].values;
}

void ReadAhead::read_parts() {
  const auto may_read = [this] { return begun_ + 1 == parts_.size() || begun_ < taken_ + blocks_.size(); };
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop_.get_token(), may_read) && begun_ + 1 < parts_.size() && !stop_.stop_requested()) {
    const std::size_t part = begun_++;
    Block& reading = block(part);
    lock.unlock();
    try {
      reading.room.resize(static_cast<std::size_t>(room_for(block_bytes)));
      source_.read_all(requests_of(part), std::as_writable_bytes(std::span(reading.room)));
    } catch (...) {
      reading.failure = std::current_exception();
    }
    lock.lock();
    reading.full = true;
    changed_.notify_all();
  }
}

}  // namespace tessera
