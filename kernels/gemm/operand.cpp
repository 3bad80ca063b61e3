#include "kernels/gemm/operand.hpp"

#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

formats::Matrix matrix_of(const Tensor& bytes, const Codes& codes) {
  const FormatTraits format = traits_of(codes.format);
  const formats::Matrix lying{bytes.rows(), bytes.columns() * size_of(bytes.type) * 8 / format.bits};
  return formats::in_order(codes.side == Side::rowwise ? formats::Order::as_source : format.columnwise_order, lying);
}

Tensor further(Tensor one, std::int64_t bytes) {
  if (one) one.data = static_cast<std::byte*>(one.data) + bytes;
  return one;
}

}  // namespace

std::int64_t Operand::rows() const { return codes && !decoded() ? matrix_of(data, *codes).rows : data.rows(); }
std::int64_t Operand::columns() const { return codes && !decoded() ? matrix_of(data, *codes).columns : data.columns(); }

Operand Operand::member(std::int64_t e) const {
  const std::int64_t elements = e * member_stride;
  const std::int64_t value_bytes = elements * size_of(data.type);
  if (!codes) return {further(data, value_bytes)};
  const std::int64_t amaxes = codes->amax.elements() / members;
  const Tensor amax = codes->amax ? codes->amax.flat(e * amaxes, amaxes) : Tensor{};
  const Codes own{codes->format, codes->side, further(codes->scales, e * codes->scales.bytes()), amax};
  return {further(data, decoded() ? value_bytes : formats::data_bytes(codes->format, elements)), own};
}

}  // namespace tessera
