#include "core/comm/staged.hpp"

#include <numeric>
#include <utility>
#include <vector>

#include "core/comm/under_way.hpp"
#include "kernels/base/index.hpp"

namespace tessera {
namespace {

/// The tensor of an exchange that this rank sends.
Tensor outgoing(Collective collective, const Exchange& x, int rank) {
  const auto at = static_cast<std::size_t>(rank);
  switch (collective) {
    case Collective::all_gather: return x.send ? x.send : x.receive.flat(x.displacements[at], x.counts[at]);
    case Collective::all_to_all:
    case Collective::exchange_rows:
    case Collective::pass_on: return x.send;
    default: return x.receive;
  }
}

class Staged final : public Communicator {
 public:
  Staged(Device& device, std::unique_ptr<Communicator> inner)
      : device_(device), stream_(device.communication()), inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return "staged(" + inner_->name() + ")"; }
  const CollectiveLog* log() const override { return inner_->log(); }
  double busy() const override { return inner_->busy(); }

  Pending submit(Stream& stream, const Operation& operation) override {
    operation.check(rank(), size());
    const int number = slots_.take("staged");
    OperationSlot& slot = slots_[number];
    if (!slot.sent.reached()) device_.wait(slot.sent);
    slot.host.clear();
    mirror(slot, operation);
    stream_.wait(stream.record());
    for (std::size_t i = 0; i < operation.exchanges.size(); ++i)
      if (const Tensor sent = outgoing(operation.collective, operation.exchanges[i], rank()))
        device_.fetch(stream_, outgoing(operation.collective, slot.host[i], rank()).data, sent);
    device_.wait(stream_.record());
    slot.inner = inner_->submit(stream, {operation.collective, slot.host, operation.group, operation.label});
    return Pending(this, number);
  }

 protected:
  void finish(Stream& stream, int slot) override {
    slots_[slot].inner.wait(stream_);
    stream.wait(return_all(slot));
  }
  void abandon(int slot) noexcept override {
    slots_[slot].inner = Pending();
    device_.wait(return_all(slot));
  }

 private:
  struct OperationSlot {
    Pending inner;
    std::span<std::byte> memory;     ///< page-locked; grows only, so that a steady state does not allocate
    Collective collective = Collective::all_gather;
    std::vector<Exchange> host;      ///< the operation's exchanges, in that memory
    std::vector<Tensor> receives;    ///< receive buffers on the device
    Event sent;                      ///< end of the copies to the device, when the memory is free again
  };

  /// Gives every buffer of the operation a counterpart in the slot's host memory.
  void mirror(OperationSlot& slot, const Operation& operation) {
    const auto room = [](const Tensor& t) { return t.data ? round_up(t.bytes(), Arena::alignment) : 0; };
    std::int64_t bytes = 0;
    for (const Exchange& x : operation.exchanges) bytes += room(x.send) + room(x.receive);
    if (std::ssize(slot.memory) < bytes) slot.memory = device_.pinned(bytes);
    std::byte* next = slot.memory.data();
    const auto copy_of = [&](const Tensor& t) {
      return t.data ? Tensor{std::exchange(next, next + room(t)), t.type, t.shape} : Tensor{};
    };
    slot.collective = operation.collective;
    slot.receives.clear();
    for (const Exchange& x : operation.exchanges) {
      slot.host.push_back({copy_of(x.send), copy_of(x.receive), x.counts, x.displacements, x.arrivals});
      slot.receives.push_back(x.receive);
    }
  }

  Event return_all(int number) {
    OperationSlot& slot = slots_[number];
    for (std::size_t i = 0; i < slot.host.size(); ++i) {
      const Exchange& x = slot.host[i];
      const auto send_part = [&](std::size_t r) {
        device_.send(stream_, slot.receives[i].flat(x.displacements[r], x.counts[r]),
                     x.receive.flat(x.displacements[r], x.counts[r]).data);
      };
      switch (slot.collective) {
        case Collective::all_gather:  // part by part: memory between the parts is the caller's
          for (std::size_t r = 0; r < x.counts.size(); ++r) send_part(r);
          break;
        case Collective::exchange_rows: {
          const std::int64_t n = std::accumulate(x.arrivals.begin(), x.arrivals.end(), std::int64_t{0});
          device_.send(stream_, slot.receives[i].flat(0, n), x.receive.data);
          break;
        }
        default:
          if (x.receive) device_.send(stream_, slot.receives[i], x.receive.data);
      }
    }
    slots_.free(number);
    return slot.sent = stream_.record();
  }

  Device& device_;
  Stream& stream_;
  std::unique_ptr<Communicator> inner_;
  UnderWay<OperationSlot> slots_;
};

}  // namespace

std::unique_ptr<Communicator> staged(Device& device, std::unique_ptr<Communicator> inner) {
  return std::make_unique<Staged>(device, std::move(inner));
}

}  // namespace tessera
