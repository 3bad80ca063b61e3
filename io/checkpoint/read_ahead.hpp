#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
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
  const PosixFile* file;      ///< where they lie, or none: the source reads them
  std::int64_t offset;        ///< in the file

  std::int64_t bytes() const { return count * size_of(tensor->type); }
};

/// Values on their way from a source: threads of its own read them, several requests at once where these follow each
/// other in a file, into blocks that are read anew once their owner has gone on.
class ReadAhead {
 public:
  static constexpr std::int64_t most_bytes = std::int64_t{512} << 10;

  /// The source is this object's alone as long as it lives.
  ReadAhead(const TensorSource& source, std::vector<ReadRequest> requests);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The values of the next request, until the next call. Throws what kept them from being read.
  std::byte* next();

 private:
  struct Block {
    std::vector<Page> memory;
    std::exception_ptr failure;
    bool full = false;
    std::byte* data() { return reinterpret_cast<std::byte*>(memory.data()); }
  };
  void run(const std::stop_token& stop);
  void fill(Block& block, std::size_t run);
  std::size_t end_of(std::size_t begin) const;

  const TensorSource& source_;
  const std::vector<ReadRequest> requests_;
  std::vector<std::size_t> runs_;  ///< the first request of each, and the end: what one block holds
  std::mutex source_mutex_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::array<Block, 8> blocks_;       ///< run r goes into block r % 8
  std::size_t begun_ = 0, done_ = 0;  ///< runs that a thread has begun, and that the owner is done with; guarded
  std::size_t at_ = 0;                ///< the owner's next request
  std::array<std::jthread, 2> readers_;
};

}  // namespace tessera
