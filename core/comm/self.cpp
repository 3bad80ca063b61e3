#include "core/comm/communicator.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

/// Communicator of one rank: submit() enqueues the whole operation, so that its Pending has nothing to wait for.
class Immediate : public Communicator {
 protected:
  void finish(Stream&, int) override {}
  void abandon(int) noexcept override {}
};

class Self final : public Immediate {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "self"; }
  bool on_streams() const override { return true; }

  Pending submit(Stream& stream, const Operation& operation) override {
    operation.check(0, 1);
    if (operation.collective == Collective::all_gather) {
      for (const Exchange& exchange : operation.exchanges)
        if (exchange.send)
          copy(stream, exchange.receive.flat(exchange.displacements[0], exchange.counts[0]), exchange.send);
    }
    if (operation.collective == Collective::exchange_rows) {
      for (const Exchange& exchange : operation.exchanges) {
        const Tensor part = exchange.send.flat(exchange.displacements[0], exchange.counts[0]);
        if (part.data != exchange.receive.data) copy(stream, exchange.receive.flat(0, part.elements()), part);
      }
    }
    return Pending(this, 0);
  }
};

class Planning final : public Immediate {
 public:
  Planning(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "planning"; }

  Pending submit(Stream& stream, const Operation& operation) override {
    operation.check(rank_, size_);
    if (operation.direct) operation.direct->enqueue(stream);
    return Pending(this, 0);
  }

 private:
  int rank_, size_;
};

}  // namespace

std::unique_ptr<Communicator> self_communicator() { return std::make_unique<Self>(); }
std::unique_ptr<Communicator> planning_communicator(int rank, int size) {
  require(size > 0 && rank >= 0 && rank < size, "planning_communicator", "takes a rank below the size");
  return std::make_unique<Planning>(rank, size);
}

}  // namespace tessera
