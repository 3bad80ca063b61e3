#pragma once
#include <span>

#include "core/device/upload_table.hpp"
#include "kernels/quantize/table.hpp"

namespace tessera {

/// Gives a table device memory of its own, and copies it there. Allocates. Local.
template <class Table> void place_table(Device& device, Table& table) {
  upload_table(device, device.compute(), table, device.allocate(Category::weights, DType::u8, {table.bytes()}));
}

/// A quantization table in device memory of its own. Throws Error{internal} as QuantizeTable does. Allocates. Local.
inline QuantizeTable placed_table(Device& device, FormatId format, std::span<const QuantizedMatrix> matrices) {
  QuantizeTable table(format, matrices);
  place_table(device, table);
  return table;
}

}  // namespace tessera
