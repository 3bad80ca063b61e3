#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "io/checkpoint/tensor_source.hpp"
#include "kernels/base/large_pages.hpp"

namespace tessera {

/// Values on their way from a source: threads of their own read them, as many as the source has readers, into blocks
/// that are read anew once their owner has gone on. Blocks are large pages, for a disk takes few pieces of memory at a
/// time.
class ReadAhead {
 public:
  static constexpr std::int64_t most_bytes = std::int64_t{512} << 10;  ///< of a request

  /// The source is this object's alone as long as it lives.
  ReadAhead(const TensorSource& source, std::vector<ReadRequest> requests);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The next request's index; its values are there until the next call. Throws what kept them from being read.
  std::size_t next();
  const ReadRequest& operator[](std::size_t index) const { return requests_[index]; }

 private:
  struct Part {
    std::size_t begin, end;  ///< requests
  };
  struct Block {
    std::span<std::byte> room;
    std::exception_ptr failure;  ///< instead of the requests without values
    bool full = false;           ///< guarded
  };
  Block& block_of(std::size_t part) { return blocks_[part % blocks_.size()]; }
  static std::vector<Part> parts_of(const std::vector<ReadRequest>& requests);
  void read_parts(const std::stop_token& stop);

  const TensorSource& source_;
  std::vector<ReadRequest> requests_;
  const std::vector<Part> parts_;  ///< what a block holds, in the order in which they are read
  const LargePages rooms_;
  std::vector<Block> blocks_;  ///< a large page each
  std::size_t given_ = 0;      ///< requests of the part that is being given
  std::size_t taken_ = 0;      ///< parts before it; guarded, as is the next
  std::size_t begun_ = 0;      ///< parts that a thread reads or has read

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::jthread> readers_;
};

}  // namespace tessera
