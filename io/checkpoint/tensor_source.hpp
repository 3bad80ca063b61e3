#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint/stored_tensor.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {

/// Elements [first, first + count) of a tensor, of one of its parts, and, once they have been read, where they are.
struct ReadRequest {
  const StoredTensor* tensor;
  std::int64_t first, count;
  std::byte* values = nullptr;  ///< aligned for the tensor's type

  std::int64_t bytes() const { return count * size_of(tensor->type); }
};

/// Where tensors are read from: canonical ones, by any piece, by each rank for itself but for read_each().
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual std::string name() const = 0;
  virtual const std::vector<StoredTensor>& tensors() const = 0;
  /// Whether its tensors say which digest they must have.
  virtual bool has_digests() const = 0;
  /// Elements [first, first + count) into host memory, in the tensor's type. Throws Error{file}.
  virtual void read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const = 0;
  /// All requests, their values somewhere in `room`, which begins with a page and has room_for() them. Throws
  /// Error{file}; those that were not read have no values.
  virtual void read_all(std::span<ReadRequest> requests, std::span<std::byte> room) const;
  /// How many threads may read at once.
  virtual int readers() const { return 1; }
  /// Reads this rank's requests, ascending in `tensors`, and hands each on in that order with its values, which are
  /// there until the next one. `tensors` are those that any rank reads, the same on all of them. Collective.
  virtual void read_each(std::span<const StoredTensor* const> tensors, std::vector<ReadRequest> requests,
                         const std::function<void(std::size_t, const ReadRequest&)>& take) const;
};

/// Bytes that a request counts for in a room.
std::int64_t bytes_in_room(const ReadRequest& request);
/// Bytes of a room for requests of so many in all. What is read by pages comes in stretches worth them, less than four
/// pages longer.
constexpr std::int64_t room_for(std::int64_t bytes_in_room) {
  return bytes_in_room + (bytes_in_room / worth_pages + 1) * 4 * page_bytes;
}

}  // namespace tessera
