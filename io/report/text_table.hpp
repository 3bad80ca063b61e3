#pragma once
#include <string>
#include <vector>

namespace tessera {

/// A table's cells: a row of heads, then rows of as many cells.
using Table = std::vector<std::vector<std::string>>;

/// The table for a terminal: columns as wide as their widest cell, the first to the left, others to the right. Pure.
std::string aligned(const Table& table);

}  // namespace tessera
