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

/// Numbered blocks that pass between an owner and its threads in a few places of memory, used in turn: one side fills a
/// block, the other empties it. A block is a large page, which a disk fetches as one piece. The owner is one thread and
/// takes blocks in ascending order.
class BlockRing {
 public:
  /// The side that fills blocks.
  enum class Filled { by_owner, by_threads };
  using Work = std::function<void(std::size_t number, std::span<std::byte> block)>;

  /// `work`: what a thread does with one of the `numbers` blocks; several run at once.
  BlockRing(std::size_t numbers, Filled filled, Work work);
  BlockRing(const BlockRing&) = delete;
  BlockRing& operator=(const BlockRing&) = delete;

  /// Waits for the next block and lends it to the owner, who fills or empties it until the next call. Rethrows what a
  /// thread threw; no more work is done then.
  std::span<std::byte> next();
  /// Waits until the threads have emptied all blocks; called by an owner who has filled the last. Throws as next()
  /// does.
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
  // Guarded by the mutex:
  std::vector<bool> ready_;  ///< by place: whether the owner may take it
  std::size_t begun_ = 0;    ///< blocks that a thread has begun or finished
  std::size_t given_ = 0;    ///< blocks that the owner has finished
  std::exception_ptr failure_;
  bool owns_ = false;  ///< the owner holds block given_

  std::vector<std::jthread> threads_;
};

}  // namespace tessera
