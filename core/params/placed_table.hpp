#pragma once
#include "core/device/device.hpp"

namespace tessera {

/// A table (DeviceImage) in device memory of its own. Allocates. Local.
template <class Table> Table placed(Device& device, Table table) {
  table.bind(device.allocate(Category::weights, DType::u8, {table.bytes()}));
  device.upload(device.compute(), table);
  return table;
}

}  // namespace tessera
