#include <algorithm>
#include <numeric>

#include "kernels/base/index.hpp"
#include "kernels/newton_schulz/back.hpp"

namespace tessera {
namespace {

using Row = NewtonSchulzTable::Row;

/// Alignment of scratch arrays in elements: tensor cores read them from such addresses.
constexpr std::int64_t alignment = 128;

std::int64_t cost_of(const Tensor& matrix) {
  const std::int64_t r = matrix.rows(), c = matrix.columns();
  return std::min(r, c) * r * c;
}

/// A row of the table without addresses and counts.
Row row_of(const Tensor& matrix) {
  Row row{};
  row.values = matrix.as<float>();
  row.rows = matrix.shape[0];
  row.columns = matrix.shape[1];
  row.small = std::min(row.rows, row.columns);
  row.big = std::max(row.rows, row.columns);
  row.x_length = newton_schulz_back::row_length(row.big);
  row.a_length = newton_schulz_back::row_length(row.small);
  return row;
}

/// Places the arrays of a row in scratch memory from element `begin` on. Returns the next free element.
std::int64_t take_scratch(Row& row, std::int64_t begin) {
  const auto take = [&](std::int64_t& place, std::int64_t length) {
    place = begin;
    begin = round_up(begin + row.small * length, alignment);
  };
  take(row.x[0], row.x_length);
  take(row.x[1], row.x_length);
  take(row.a, row.a_length);
  take(row.b, row.a_length);
  return begin;
}

/// The row that follows, with the begin of its pieces only.
Row behind(const Row& row) {
  Row next{};
  const std::int64_t down = ceil_div(row.small, newton_schulz_back::tile),
                     across = ceil_div(row.x_length, newton_schulz_back::tile);
  next.first_chunk = row.first_chunk + ceil_div(row.rows * row.columns, NewtonSchulzTable::chunk);
  next.first_x_row = row.first_x_row + row.small;
  next.first_row = row.first_row + row.rows;
  next.first_upper_tile = row.first_upper_tile + down * (down + 1) / 2;
  next.first_tile = row.first_tile + down * across;
  next.index = row.index + 1;
  return next;
}

void set_firsts(Row& row, const Row& from) {
  row.first_chunk = from.first_chunk;
  row.first_x_row = from.first_x_row;
  row.first_row = from.first_row;
  row.first_upper_tile = from.first_upper_tile;
  row.first_tile = from.first_tile;
  row.index = from.index;
}

}  // namespace

NewtonSchulzTable::NewtonSchulzTable(std::span<const Tensor> matrices) {
  std::vector<Tensor> sorted(matrices.begin(), matrices.end());
  for (const Tensor& matrix : sorted)
    require(matrix.type == DType::f32 && matrix.shape.rank() == 2 && matrix.elements() > 0, "NewtonSchulzTable",
            "takes matrices of f32");
  std::ranges::stable_sort(sorted, [](const Tensor& a, const Tensor& b) { return cost_of(a) > cost_of(b); });
  Row end{};
  std::int64_t taken = 0;
  for (const Tensor& matrix : sorted) {
    Row row = row_of(matrix);
    set_firsts(row, end);
    const std::int64_t with = take_scratch(row, taken) * size_of(DType::bf16);
    if (batches_.empty() || with > newton_schulz_back::batch_bytes()) {
      batches_.push_back({row.index, row.index});
      taken = 0;
    }
    taken = take_scratch(row, taken);
    batches_.back().last = row.index + 1;
    scratch_bytes_ = std::max(scratch_bytes_, taken * size_of(DType::bf16));
    end = behind(row);
    add(row);
  }
  add(end);
}

}  // namespace tessera
