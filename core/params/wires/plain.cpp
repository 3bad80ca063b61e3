#include "core/params/wires/wire.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

class PlainWire final : public Wire {
 public:
  void stage(Stream& stream, const Tensor& weights_slice, const Tensor& master_shard) const override {
    convert(stream, weights_slice, master_shard);
  }
  void consume(Stream&, const Tensor&) const override {}  // what travelled is what a GEMM reads
};

}  // namespace

std::unique_ptr<Wire> plain_wire() { return std::make_unique<PlainWire>(); }

}  // namespace tessera
