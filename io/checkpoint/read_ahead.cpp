#include "io/checkpoint/read_ahead.hpp"

#include <utility>

namespace tessera {
namespace {

constexpr std::int64_t part_bytes = 3 * ReadAhead::most_bytes;
static_assert(room_for(part_bytes) <= LargePages::bytes && part_bytes >= ReadAhead::most_bytes);
// Of those that are being read: a slow one, or a busy core, holds up the disk only when all the others are full.
constexpr int blocks_ahead = 16;

}  // namespace

ReadAhead::ReadAhead(const TensorSource& source, std::vector<ReadRequest> requests)
    : source_(source),
      requests_(std::move(requests)),
      parts_(parts_of(requests_)),
      rooms_(static_cast<std::size_t>(source.readers() + blocks_ahead)) {
  for (std::size_t i = 0; i < rooms_.size(); ++i) blocks_.push_back({rooms_[i], nullptr, false});
  for (int i = 0; i < source.readers(); ++i)
    readers_.emplace_back([this](const std::stop_token& stop) { read_parts(stop); });
}

std::vector<ReadAhead::Part> ReadAhead::parts_of(const std::vector<ReadRequest>& requests) {
  std::vector<Part> parts;
  for (std::size_t begin = 0, end = 0; begin < requests.size(); begin = end) {
    std::int64_t bytes = 0;
    for (; end < requests.size() && bytes + bytes_in_room(requests[end]) <= part_bytes; ++end)
      bytes += bytes_in_room(requests[end]);
    parts.push_back({begin, end});
  }
  return parts;
}

std::size_t ReadAhead::next() {
  std::unique_lock lock(mutex_);
  if (given_ == parts_[taken_].end - parts_[taken_].begin) {
    block_of(taken_++).full = false;
    given_ = 0;
    changed_.notify_all();
  }
  const Block& block = block_of(taken_);
  changed_.wait(lock, [&] { return block.full; });
  const std::size_t request = parts_[taken_].begin + given_;
  if (!requests_[request].values) std::rethrow_exception(block.failure);
  ++given_;
  return request;
}

void ReadAhead::read_parts(const std::stop_token& stop) {
  const auto may_read = [this] { return begun_ == parts_.size() || begun_ < taken_ + blocks_.size(); };
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, may_read) && begun_ < parts_.size() && !stop.stop_requested()) {
    const Part part = parts_[begun_];
    Block& block = block_of(begun_++);
    lock.unlock();
    try {
      source_.read_all(std::span(requests_).subspan(part.begin, part.end - part.begin), block.room);
    } catch (...) {
      block.failure = std::current_exception();
    }
    lock.lock();
    block.full = true;
    changed_.notify_all();
  }
}

}  // namespace tessera
