#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "io/files/posix_file.hpp"
#include "kernels/base/large_pages.hpp"

namespace tessera {

/// Bytes on their way to files: their owner fills blocks of memory, which threads of its own write, and which then are
/// filled anew. Blocks are large pages, and bytes lie there as in the file, so that a disk can fetch them. The owner is
/// one thread.
class WriteBehind {
 public:
  WriteBehind();
  /// Drops what has not been written.
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  /// Where to put what comes into `file` at `offset`: at least 4 of `bytes` or all of them, no element cut; aligned as
  /// there, or to 4. They must be there before the next call here. Waits for memory that is free. The file is open, and
  /// the owner leaves it alone, until drain().
  std::span<std::byte> room(PosixFile& file, std::int64_t offset, std::int64_t bytes);
  /// Waits until all is written. Throws what kept any of it from that; then nothing more is written.
  void drain();

 private:
  struct Piece {
    PosixFile* file;
    std::int64_t offset, begin, bytes;  ///< begin: in the block
  };
  struct Block {
    std::span<std::byte> memory;
    std::vector<Piece> pieces;
    std::int64_t used = 0;
  };
  void submit();
  void run(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  const LargePages memory_;
  std::vector<Block> blocks_;
  std::deque<Block*> free_, full_;  ///< guarded, as all but the block being filled
  std::exception_ptr failure_;
  Block* filling_ = nullptr;
  std::array<std::jthread, 2> writers_;  ///< one sends what was written to the disk, and waits, while one writes
};

}  // namespace tessera
