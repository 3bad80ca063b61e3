#include "io/checkpoint/read_ahead.hpp"

#include <algorithm>
#include <utility>

#include "kernels/base/index.hpp"

namespace tessera {
namespace {

constexpr std::int64_t page = sizeof(Page);
constexpr std::int64_t run_bytes = 2 * ReadAhead::most_bytes;
constexpr std::size_t block_pages = run_bytes / page + 1;  // a run begins within a page

bool follows(const ReadRequest& next, const ReadRequest& last) {
  return last.file && next.file == last.file && next.offset == last.offset + last.bytes();
}

}  // namespace

ReadAhead::ReadAhead(const TensorSource& source, std::vector<ReadRequest> requests)
    : source_(source), requests_(std::move(requests)) {
  for (std::size_t i = 0; i < requests_.size(); i = end_of(i)) runs_.push_back(i);
  runs_.push_back(requests_.size());
  for (std::jthread& reader : readers_) reader = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

std::size_t ReadAhead::end_of(std::size_t begin) const {
  std::int64_t bytes = requests_[begin].bytes();
  std::size_t end = begin + 1;
  for (; end < requests_.size() && follows(requests_[end], requests_[end - 1]); ++end) {
    bytes += requests_[end].bytes();
    if (bytes > run_bytes) break;
  }
  return end;
}

std::byte* ReadAhead::next() {
  std::unique_lock lock(mutex_);
  if (at_ == runs_[done_ + 1]) {
    blocks_[done_ % blocks_.size()].full = false;
    ++done_;
    changed_.notify_all();
  }
  Block& block = blocks_[done_ % blocks_.size()];
  changed_.wait(lock, [&] { return block.full; });
  if (block.failure) std::rethrow_exception(block.failure);
  const ReadRequest &first = requests_[runs_[done_]], &request = requests_[at_++];
  return block.data() + first.offset % page + (request.offset - first.offset);
}

void ReadAhead::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return begun_ + 1 == runs_.size() || begun_ < done_ + blocks_.size(); };
  while (changed_.wait(lock, stop, ready) && !stop.stop_requested() && begun_ + 1 < runs_.size()) {
    const std::size_t run = begun_++;
    Block& block = blocks_[run % blocks_.size()];
    lock.unlock();
    fill(block, run);
    lock.lock();
    block.full = true;
    changed_.notify_all();
  }
}

/// Of a file whole pages, as disks have them.
void ReadAhead::fill(Block& block, std::size_t run) {
  const ReadRequest &first = requests_[runs_[run]], &last = requests_[runs_[run + 1] - 1];
  try {
    block.memory.resize(block_pages);
    if (first.file) {
      const std::int64_t begin = first.offset / page * page, end = last.offset + last.bytes();
      first.file->read(begin, block.data(), std::max(end, std::min(round_up(end, page), first.file->size())) - begin);
    } else {
      const std::lock_guard alone(source_mutex_);
      source_.read(*first.tensor, first.first, first.count, block.data());
    }
  } catch (...) {
    block.failure = std::current_exception();
  }
}

}  // namespace tessera
