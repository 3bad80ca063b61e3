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

namespace tessera {

/// Values on their way from a source: threads of their own read them, as many as the source has readers, into blocks
/// that are read anew once their owner has gone on.
class ReadAhead {
 public:
  static constexpr std::int64_t most_bytes = std::int64_t{512} << 10;  ///< of a request

  /// The source is this object's alone as long as it lives.
  ReadAhead(const TensorSource& source, std::vector<ReadRequest> requests);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead() { stop_.request_stop(); }

  /// The values of the next request, until the next call. Throws what kept them from being read.
  std::byte* next();

 private:
  struct Block {
    std::vector<Page> room;
    std::exception_ptr failure;  ///< instead of the requests without values
    bool full = false;           ///< guarded
  };
  Block& block(std::size_t part) { return blocks_[part % blocks_.size()]; }
  std::span<ReadRequest> requests_of(std::size_t part) {
    return std::span(requests_).subspan(parts_[part], parts_[part + 1] - parts_[part]);
  }
  void read_parts();

  const TensorSource& source_;
  std::vector<ReadRequest> requests_;
  std::vector<std::size_t> parts_;  ///< the first request of each block's worth, and the end
  std::vector<Block> blocks_;
  std::size_t given_ = 0;  ///< requests
  std::size_t taken_ = 0;  ///< parts before the one that is being given; guarded, as is the next
  std::size_t begun_ = 0;  ///< parts that a thread reads or has read

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::stop_source stop_;
  std::vector<std::jthread> readers_;
};

}  // namespace tessera
