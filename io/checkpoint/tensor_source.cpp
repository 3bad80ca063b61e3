#include "io/checkpoint/tensor_source.hpp"

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

std::int64_t bytes_in_room(const ReadRequest& request) { return round_up(request.bytes(), alignment); }

}  // namespace tessera
