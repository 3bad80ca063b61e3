#include "core/comm/communicator.hpp"

#include <algorithm>
#include <numeric>

#include "core/device/region.hpp"
#include "kernels/base/error.hpp"

namespace tessera {
namespace {

std::int64_t total(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

void check_cut(const Exchange& exchange, const Tensor& cut, int size) {
  require(std::ssize(exchange.counts) == size && std::ssize(exchange.displacements) == size, "Operation",
          "takes one count and one displacement a rank");
  for (std::size_t r = 0; r < exchange.counts.size(); ++r) {
    const std::int64_t begin = exchange.displacements[r], count = exchange.counts[r];
    require(begin >= 0 && count >= 0 && begin + count <= cut.elements(), "Operation", "a part leaves its buffer");
  }
}

void check_exchange(Collective collective, const Exchange& exchange, int rank, int size) {
  const Tensor& receive = exchange.receive;
  switch (collective) {
    case Collective::all_gather:
      check_cut(exchange, receive, size);
      return require(!exchange.send || (exchange.send.type == receive.type &&
                                        exchange.send.elements() == exchange.counts[static_cast<std::size_t>(rank)]),
                     "Operation", "all_gather sends a part of the whole");
    case Collective::all_to_all:
      check_cut(exchange, exchange.send, size);
      require(exchange.send.type == receive.type, "Operation", "all_to_all keeps the type");
      return require(receive.elements() == (size - 1) * exchange.counts[static_cast<std::size_t>(rank)],
                     "Operation", "all_to_all receives [size - 1, counts[rank]]");
    case Collective::exchange_rows:
      check_cut(exchange, exchange.send, size);
      require(exchange.send.type == receive.type, "Operation", "exchange_rows keeps the type");
      require(std::ssize(exchange.arrivals) == size && std::ranges::min(exchange.arrivals) >= 0 &&
                  total(exchange.arrivals) <= receive.elements(),
              "Operation", "exchange_rows receives arrivals[r] elements of each rank r");
      return require(exchange.arrivals[static_cast<std::size_t>(rank)] ==
                         exchange.counts[static_cast<std::size_t>(rank)],
                     "Operation", "a rank receives of itself what it sends itself");
    case Collective::pass_on:
      require(rank > 0 || !receive, "Operation", "pass_on: the first rank receives nothing");
      return require(rank + 1 < size || !exchange.send, "Operation", "pass_on: the last rank sends nothing");
    case Collective::all_reduce_max:
      return require(receive.type == DType::u16 || receive.type == DType::i64 || receive.type == DType::u64,
                     "Operation", "all_reduce_max takes u16, i64 or u64");
    case Collective::all_reduce_sum:
      return require(receive.type == DType::i64 || receive.type == DType::u64, "Operation",
                     "all_reduce_sum takes i64 or u64");
  }
}

std::int64_t received(Collective collective, const Exchange& exchange, int rank, int size) {
  const auto r = static_cast<std::size_t>(rank);
  switch (collective) {
    case Collective::all_gather: return (total(exchange.counts) - exchange.counts[r]) * size_of(exchange.receive.type);
    case Collective::all_to_all: return exchange.counts[r] * (size - 1) * size_of(exchange.receive.type);
    case Collective::exchange_rows:
      return (total(exchange.arrivals) - exchange.arrivals[r]) * size_of(exchange.receive.type);
    case Collective::pass_on: return exchange.receive ? exchange.receive.bytes() : 0;
    default: return size == 1 ? 0 : exchange.receive.bytes();
  }
}

}  // namespace

std::int64_t Operation::bytes(int rank, int size) const {
  std::int64_t sum = 0;
  for (const Exchange& exchange : exchanges) sum += received(collective, exchange, rank, size);
  return sum;
}

void Operation::check(int rank, int size) const {
  require(!direct || collective == Collective::exchange_rows, "Operation", "rows alone move directly");
  for (const Exchange& exchange : exchanges) check_exchange(collective, exchange, rank, size);
}

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this == &other) return *this;
  if (owner_) owner_->abandon(slot_);
  owner_ = std::exchange(other.owner_, nullptr);
  slot_ = other.slot_;
  return *this;
}

Pending::~Pending() {
  if (owner_) owner_->abandon(slot_);  // mutation: dropped_gather_is_left_behind
}

void Pending::wait(Stream& stream) {
  require(owner_ != nullptr, "Pending::wait", "nothing is under way");
  const Region region(stream, RegionName::waiting);
  std::exchange(owner_, nullptr)->finish(stream, slot_);
}

}  // namespace tessera
