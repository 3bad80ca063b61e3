#include "io/checkpoint/write_behind.hpp"

#include <algorithm>

#include "kernels/base/index.hpp"

namespace tessera {
namespace {

constexpr std::size_t blocks = 4;
constexpr std::int64_t word = 4;  // of any stored type, elements are words or parts of one

/// The first place from `used` on for what begins at an offset of a file: as far behind a page's beginning as there.
std::int64_t place_of(std::int64_t offset, std::int64_t used) {
  if (offset % word != 0) return round_up(used, word);
  return used + (offset % page_bytes - used % page_bytes + page_bytes) % page_bytes;
}

}  // namespace

WriteBehind::WriteBehind() : memory_(blocks), blocks_(blocks) {
  for (std::size_t i = 0; i < blocks; ++i) {
    blocks_[i].memory = memory_[i];
    free_.push_back(&blocks_[i]);
  }
  for (std::jthread& writer : writers_) writer = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

WriteBehind::~WriteBehind() = default;

std::span<std::byte> WriteBehind::room(PosixFile& file, std::int64_t offset, std::int64_t bytes) {
  const auto goes_on = [&](const Block& block) {
    const Piece* const last = block.pieces.empty() ? nullptr : &block.pieces.back();
    return last && last->file == &file && last->offset + last->bytes == offset;
  };
  const auto begin_in = [&](const Block& block) { return goes_on(block) ? block.used : place_of(offset, block.used); };
  if (filling_ && begin_in(*filling_) + word > LargePages::bytes) submit();
  if (!filling_) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !free_.empty(); });
    filling_ = free_.front();
    free_.pop_front();
  }
  Block& block = *filling_;
  const std::int64_t begin = begin_in(block), taken = std::min(bytes, (LargePages::bytes - begin) / word * word);
  if (goes_on(block))
    block.pieces.back().bytes += taken;
  else
    block.pieces.push_back({&file, offset, begin, taken});
  block.used = begin + taken;
  return block.memory.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(taken));
}

void WriteBehind::submit() {
  const std::lock_guard lock(mutex_);
  full_.push_back(filling_);
  filling_ = nullptr;
  changed_.notify_all();
}

void WriteBehind::drain() {
  if (filling_) submit();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return free_.size() == blocks_.size(); });
  if (failure_) std::rethrow_exception(failure_);
}

void WriteBehind::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !full_.empty(); }) && !stop.stop_requested()) {
    Block* const block = full_.front();
    full_.pop_front();
    const bool failed = failure_ != nullptr;
    lock.unlock();
    std::exception_ptr failure;
    if (!failed) try {
        for (const Piece& piece : block->pieces)
          piece.file->write(piece.offset, block->memory.data() + piece.begin, piece.bytes);
      } catch (...) {
        failure = std::current_exception();
      }
    block->pieces.clear();
    block->used = 0;
    lock.lock();
    if (failure) failure_ = failure;
    free_.push_back(block);
    changed_.notify_all();
  }
}

}  // namespace tessera
