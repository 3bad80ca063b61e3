#include "io/checkpoint/index.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>

#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/storage.hpp"

namespace tessera {
namespace {

Error unfit(const hdf5::File& file, const std::string& why) { return {Exit::file, file.path().string() + ": " + why}; }

/// The shape of so many elements, none of its axes empty.
Shape shape_of(const hdf5::File& file, const hdf5::TableRow& row) {
  const auto end = std::ranges::find(row.shape, std::uint64_t{0});
  const auto product = std::accumulate(row.shape.begin(), end, std::uint64_t{1}, std::multiplies<>());
  if (end == row.shape.begin() || product != row.elements)
    throw unfit(file, row.name + " has no shape of its elements");
  return hdf5::shape_of({row.shape.begin(), end});
}

/// In the next of the `places`, as many as it takes.
StoredTensor tensor_of(const hdf5::File& file, const hdf5::TableRow& row, std::int64_t bytes,
                       std::span<const std::uint64_t>& places) {
  const auto type = std::ranges::find_if(hdf5::stored_types, [&](DType known) { return row.type == name_of(known); });
  if (type == std::end(hdf5::stored_types) || row.datasets == 0 || row.datasets > places.size() ||
      row.elements % row.datasets != 0 || row.elements > static_cast<std::uint64_t>(bytes))
    throw unfit(file, row.name + " is no tensor");
  StoredTensor tensor = named(file, row);
  tensor.shape = shape_of(file, row);
  tensor.type = *type;
  tensor.axes = row.axes;
  tensor.tied_to = row.tied_to;
  const auto count = static_cast<std::int64_t>(row.elements / row.datasets);
  for (const std::uint64_t place : places.first(row.datasets)) {
    const auto offset = static_cast<std::int64_t>(place);
    if (offset < 0 || offset > bytes - count * size_of(*type)) throw unfit(file, row.name + " reaches beyond the file");
    tensor.parts.push_back({count * std::ssize(tensor.parts), count, offset});
  }
  places = places.subspan(row.datasets);
  return tensor;
}

}  // namespace

std::vector<StoredTensor> indexed_tensors(const hdf5::File& file, std::int64_t bytes) {
  const std::vector<std::uint64_t> all_places = file.numbers(integrity_places);
  std::span<const std::uint64_t> places = all_places;
  std::vector<StoredTensor> tensors;
  for (const hdf5::TableRow& row : file.table(integrity_table)) tensors.push_back(tensor_of(file, row, bytes, places));
  if (!places.empty()) throw unfit(file, "its table accounts for fewer places than there are");
  return tensors;
}

std::uint64_t structure_digest(const PayloadFile& file, const std::vector<StoredTensor>& tensors) {
  struct Extent {
    std::int64_t begin, end;
  };
  std::vector<Extent> taken;
  for (const StoredTensor& tensor : tensors)
    for (const StoredTensor::Part& part : tensor.parts)
      taken.push_back({part.offset, part.offset + part.count * size_of(tensor.type)});
  std::ranges::sort(taken, {}, &Extent::begin);
  taken.push_back({file.size(), file.size()});
  std::vector<std::byte> block(std::size_t{1} << 18);
  std::uint64_t sum = 0;
  std::int64_t at = 0;
  for (const Extent& extent : taken) {
    while (at < extent.begin) {
      const std::int64_t count = std::min(std::ssize(block), extent.begin - at);
      file.read(at, block.data(), count);
      sum += host_digest(block.data(), DType::u8, count, at);
      at += count;
    }
    at = std::max(at, extent.end);
  }
  return sum;
}

}  // namespace tessera
