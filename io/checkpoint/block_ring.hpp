#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kernels/base/large_pages.hpp"

namespace tessera {

/// Numbered blocks between an owner and threads of its own, in few places of memory that are used in turn: one side
/// fills a block, then the other empties it. Each block is a large page, which a disk fetches as one piece. The owner
/// is one thread and takes the blocks in the order of their numbers.
class BlockRing {
 public:
  /// Who fills blocks.
  enum class Filled { by_owner, by_threads };
  using Work = std::function<void(std::size_t number, std::span<std::byte> block)>;

  /// `work` is what threads do with each of `numbers` blocks, several at once.
  BlockRing(std::size_t numbers, Filled filled, Work work);
  BlockRing(const BlockRing&) = delete;
  BlockRing& operator=(const BlockRing&) = delete;

  /// The next number's block, which the owner fills or empties until its next call. Waits for it. Throws what a thread
  /// threw; then no more work is done.
  std::span<std::byte> next();
  /// The owner is done with the last block, which it has filled: waits for the threads. Throws as next() does.
  void finish();

 private:
  void give_back();
  void run(const std::stop_token& stop);

  const std::size_t numbers_;
  const bool threads_fill_;
  const Work work_;
  const LargePages memory_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  // Guarded:
  std::vector<bool> ready_;  ///< by place: whether the owner may have it
  std::size_t begun_ = 0;    ///< numbers that a thread works on or is through with
  std::size_t given_ = 0;    ///< numbers that the owner is through with
  std::exception_ptr failure_;
  bool owns_ = false;  ///< the owner has the block of number given_

  std::vector<std::jthread> threads_;
};

}  // namespace tessera
