#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "io/checkpoint/reader.hpp"

namespace tessera {

/// What one rank reads at once.
struct ReadRequest {
  const StoredTensor* tensor;
  std::int64_t first, count;  ///< elements; at most ReadAhead::most_bytes of them

  std::int64_t bytes() const { return count * size_of(tensor->type); }
};

/// Values on their way from a source: a thread of its own reads them in order, into blocks that are read anew once
/// their owner has gone on.
class ReadAhead {
 public:
  static constexpr std::int64_t most_bytes = std::int64_t{512} << 10;

  /// The source is this object's alone as long as it lives.
  ReadAhead(const TensorSource& source, std::vector<ReadRequest> requests);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The values of the next request, aligned for any type, until the next call. Throws what kept them from being read.
  std::byte* next();

 private:
  static constexpr std::size_t blocks = 4;
  struct Block {
    std::vector<std::byte> memory;
    std::vector<std::int64_t> begins;  ///< of its requests
    std::exception_ptr failure;        ///< instead of the request after them
  };
  void run(const std::stop_token& stop);
  void fill(Block& block);
  void expect_more();

  const TensorSource& source_;
  const std::vector<ReadRequest> requests_;
  std::size_t read_ = 0, expected_ = 0;  ///< requests; of the thread
  std::int64_t bytes_expected_ = 0;      ///< of requests that are not read yet

  std::array<Block, blocks> blocks_;
  Block* taken_ = nullptr;
  std::size_t taken_requests_ = 0;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Block*> free_, full_;  ///< guarded
  std::jthread reader_;
};

}  // namespace tessera
