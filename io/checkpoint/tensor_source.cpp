#include "io/checkpoint/tensor_source.hpp"

#include <utility>

#include "io/checkpoint/read_ahead.hpp"
#include "kernels/base/index.hpp"

namespace tessera {
namespace {

constexpr std::int64_t alignment = 8;  // of any type

}  // namespace

void TensorSource::read_all(std::span<ReadRequest> requests, std::span<std::byte> room) const {
  std::byte* at = room.data();
  for (ReadRequest& request : requests) {
    read(*request.tensor, request.first, request.count, at);
    request.values = at;
    at += bytes_in_room(request);
  }
}

/// By threads that read ahead; no rank waits for another.
void TensorSource::read_each(std::span<const StoredTensor* const>, std::vector<ReadRequest> requests,
                             const std::function<void(std::size_t, const ReadRequest&)>& take) const {
  const std::size_t n = requests.size();
  ReadAhead values(*this, std::move(requests));
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t next = values.next();
    take(next, values[next]);
  }
}

std::int64_t bytes_in_room(const ReadRequest& request) { return round_up(request.bytes(), alignment); }

}  // namespace tessera
