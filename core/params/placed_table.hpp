#pragma once
#include <span>

#include "core/device/device.hpp"
#include "kernels/quantize/table.hpp"

namespace tessera {

/// A quantization table in device memory of its own. Throws Error{internal} as QuantizeTable does. Allocates. Local.
inline QuantizeTable placed_table(Device& device, FormatId format, std::span<const QuantizedMatrix> matrices) {
  QuantizeTable table(format, matrices);
  const Tensor memory = device.allocate(Category::weights, DType::u8, {table.bytes()});
  device.upload(device.compute(), memory, table.image());
  table.place(memory);
  return table;
}

}  // namespace tessera
