#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "io/hdf5/file.hpp"

namespace tessera {

inline constexpr const char* integrity_table = "/integrity/table";
inline constexpr const char* integrity_places = "/integrity/places";

/// One row of /integrity/table: a tensor.
struct IntegrityRow {
  std::string name;
  std::uint64_t digest = 0, elements = 0, non_finite = 0;
  // The index, which older tables lack:
  std::string type, axes, tied_to;
  std::array<std::uint64_t, 3> shape{};  ///< 0 for missing axes
  std::uint64_t datasets = 0;            ///< number of datasets that hold the tensor; 0 in older tables
};

/// Creates the table without content; write_integrity_rows writes it. Names and tied_to have at most `width` - 1 bytes.
void add_integrity_table(hdf5::File& file, std::size_t rows, std::size_t width);
void write_integrity_rows(hdf5::File& file, const std::vector<IntegrityRow>& rows, std::size_t width);

/// The rows of a file; those of an older table have no index. Throws Error{file} if the file holds no such table.
std::vector<IntegrityRow> integrity_rows(const hdf5::File& file);

}  // namespace tessera
