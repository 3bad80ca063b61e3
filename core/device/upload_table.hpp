#pragma once
#include "core/device/device.hpp"

namespace tessera {

/// Copies a kernel's table to device memory, u8 [its bytes()], where launches read it from then on. The memory must
/// outlive the table's use. Blocks the host until the table may change, ordered on `stream`. Local.
template <class Table>
void upload_table(Device& device, Stream& stream, Table& table, const Tensor& memory) {
  table.place(memory);
  device.upload(stream, memory, table.image());
}

}  // namespace tessera
