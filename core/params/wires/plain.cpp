#include "core/params/wires/wire.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

class PlainWire final : public Wire {
 public:
  explicit PlainWire(const StorageFormat& storage) : storage_(storage) {}
  WireTraits traits() const override { return {storage_.name, storage_.wire_bytes, storage_.cut_multiple}; }
  void stage(Stream& stream, const Tensor& weights_slice, const Tensor& master_shard) const override {
    convert(stream, weights_slice, master_shard);
  }
  void consume(Stream&, const Tensor&) const override {}  // what travelled is what a GEMM reads

 private:
  StorageFormat storage_;
};

}  // namespace

std::unique_ptr<Wire> plain_wire(const StorageFormat& storage) { return std::make_unique<PlainWire>(storage); }

}  // namespace tessera
