#include "io/checkpoint/integrity_table.hpp"

#include <algorithm>
#include <cstring>

namespace tessera {
namespace {

/// A column, and the member of a row that holds its value.
struct Field {
  hdf5::Column column;
  std::string* text;
  std::uint64_t* numbers = nullptr;
};

enum class Extent { digests, with_index };

/// The fields in the order of the columns; texts of names have `width` bytes.
std::vector<Field> fields_of(IntegrityRow& row, std::size_t width, Extent extent) {
  using enum hdf5::Column::Kind;
  constexpr std::size_t number = sizeof(std::uint64_t), type_width = 8, axes_width = 24;
  std::vector<Field> fields{{{"name", text, width}, &row.name},
                            {{"digest", numbers, number}, nullptr, &row.digest},
                            {{"elements", numbers, number}, nullptr, &row.elements},
                            {{"non_finite", numbers, number}, nullptr, &row.non_finite}};
  if (extent == Extent::with_index)
    fields.insert(fields.end(), {{{"type", text, type_width}, &row.type},
                                 {{"axes", text, axes_width}, &row.axes},
                                 {{"shape", numbers, sizeof row.shape}, nullptr, row.shape.data()},
                                 {{"tied_to", text, width}, &row.tied_to},
                                 {{"datasets", numbers, number}, nullptr, &row.datasets}});
  return fields;
}

hdf5::Columns columns_of(std::size_t width, Extent extent) {
  IntegrityRow row;
  hdf5::Columns columns;
  for (const Field& field : fields_of(row, width, extent)) columns.push_back(field.column);
  return columns;
}

/// How a stored table is laid out: whether it has the index, and the bytes of its names.
struct Layout {
  std::size_t width;
  Extent extent;
};
Layout layout_of(std::size_t columns, std::size_t bytes) {
  const bool index = columns > 4;
  const Extent extent = index ? Extent::with_index : Extent::digests;
  const std::size_t rest = hdf5::row_bytes(columns_of(0, extent));
  return {bytes > rest ? (bytes - rest) / (index ? 2 : 1) : 1, extent};
}

}  // namespace

void add_integrity_table(hdf5::File& file, std::size_t rows, std::size_t width) {
  file.add_table(integrity_table, columns_of(width, Extent::with_index), rows);
}

void write_integrity_rows(hdf5::File& file, const std::vector<IntegrityRow>& rows, std::size_t width) {
  const hdf5::Columns columns = columns_of(width, Extent::with_index);
  std::vector<char> bytes(rows.size() * hdf5::row_bytes(columns), '\0');
  char* to = bytes.data();
  for (IntegrityRow row : rows)
    for (const Field& field : fields_of(row, width, Extent::with_index)) {
      if (field.text)
        field.text->copy(to, field.column.bytes);
      else
        std::memcpy(to, field.numbers, field.column.bytes);
      to += field.column.bytes;
    }
  file.write_table(integrity_table, columns, bytes);
}

std::vector<IntegrityRow> integrity_rows(const hdf5::File& file) {
  Layout layout{};
  const std::vector<char> bytes =
      file.table(integrity_table, "table of digests", [&](std::size_t columns, std::size_t bytes_of_row) {
        layout = layout_of(columns, bytes_of_row);
        return columns_of(layout.width, layout.extent);
      });
  std::vector<IntegrityRow> rows(bytes.size() / hdf5::row_bytes(columns_of(layout.width, layout.extent)));
  const char* from = bytes.data();
  for (IntegrityRow& row : rows)
    for (const Field& field : fields_of(row, layout.width, layout.extent)) {
      if (field.text)
        field.text->assign(from, strnlen(from, field.column.bytes));
      else
        std::memcpy(field.numbers, from, field.column.bytes);
      from += field.column.bytes;
    }
  return rows;
}

}  // namespace tessera
