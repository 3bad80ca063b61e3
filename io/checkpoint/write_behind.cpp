#include "io/checkpoint/write_behind.hpp"

#include <algorithm>

namespace tessera {
namespace {

constexpr std::size_t blocks = 4;
constexpr std::int64_t block_bytes = std::int64_t{2} << 20;

}  // namespace

WriteBehind::WriteBehind() : blocks_(blocks) {
  for (Block& block : blocks_) {
    block.memory.resize(static_cast<std::size_t>(block_bytes));
    free_.push_back(&block);
  }
  for (std::jthread& writer : writers_) writer = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

WriteBehind::~WriteBehind() = default;

std::span<std::byte> WriteBehind::room(PosixFile& file, std::int64_t offset, std::int64_t bytes) {
  constexpr std::int64_t word = 8;  // no element is cut
  if (filling_ && (block_bytes - filling_->used) / word == 0) submit();
  if (!filling_) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !free_.empty(); });
    filling_ = free_.front();
    free_.pop_front();
  }
  Block& block = *filling_;
  const std::int64_t begin = block.used, taken = std::min(bytes, (block_bytes - begin) / word * word);
  block.used += taken;
  Piece* const last = block.pieces.empty() ? nullptr : &block.pieces.back();
  if (last && last->file == &file && last->offset + last->bytes == offset)
    last->bytes += taken;
  else
    block.pieces.push_back({&file, offset, begin, taken});
  return std::span(block.memory).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(taken));
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
