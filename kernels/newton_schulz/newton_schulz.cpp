#include "kernels/newton_schulz/newton_schulz.hpp"

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/base/prefix.hpp"
#include "kernels/newton_schulz/back.hpp"

namespace tessera {
namespace {

using Matrix = NewtonSchulzTable::Row;
using Batch = NewtonSchulzTable::Batch;

/// norms[m] = max(|U|, 1e-15) of the table's m-th matrix. Squares are summed within chunks, then over chunks, in order.
void measure(Stream& stream, const NewtonSchulzTable& table, double* sums, float* norms) {
  constexpr std::int64_t chunk = NewtonSchulzTable::chunk;
  const Matrix* const rows = table.device_rows();
  const std::int64_t count = table.count();
  launch_rows(
      stream, "newton_schulz_squares", table.rows().back().first_chunk, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        const Matrix& matrix = row_of_piece(rows, 0, count, &Matrix::first_chunk, r);
        const std::int64_t begin = (r - matrix.first_chunk) * chunk, left = matrix.rows * matrix.columns - begin;
        const float* const u = matrix.values + begin;
        const auto sum = row.template sum<double>(left < chunk ? left : chunk, [&](std::int64_t j) {
          return static_cast<double>(u[j]) * static_cast<double>(u[j]);
        });
        row.once([&] { sums[r] = sum; });
      });
  launch_rows(
      stream, "newton_schulz_norms", count, KOKKOS_LAMBDA(const Row& row, std::int64_t m) {
        // mutation: update_of_a_batch
        const std::int64_t first = rows[m].first_chunk, chunks = rows[m + 1].first_chunk - first;
        const auto sum = row.template sum<double>(chunks, [&](std::int64_t j) { return sums[first + j]; });
        row.once([&] {
          const auto norm = static_cast<float>(::sqrt(sum));
          norms[m] = norm < 1e-15f ? 1e-15f : norm;
        });
      });
}

/// x[0] = bf16(U / norm), transposed if U has more rows than columns.
void start(Stream& stream, const NewtonSchulzTable& table, const Batch& batch, const float* norms, bf16* scratch) {
  const Matrix* const rows = table.device_rows();
  const std::int64_t first = table.rows()[static_cast<std::size_t>(batch.first)].first_x_row;
  const std::int64_t end = table.rows()[static_cast<std::size_t>(batch.last)].first_x_row;
  launch_rows(
      stream, "newton_schulz_start", end - first, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        const Matrix& matrix = row_of_piece(rows, batch.first, batch.last, &Matrix::first_x_row, first + r);
        const std::int64_t i = first + r - matrix.first_x_row, big = matrix.big;
        const float norm = norms[matrix.index];
        const float* const u = matrix.values + (matrix.turned() ? i : i * matrix.columns);
        const std::int64_t next = matrix.turned() ? matrix.columns : 1;
        bf16* const x = scratch + matrix.x[0] + i * matrix.x_length;
        row.each(big, [=](std::int64_t j) { x[j] = bf16(u[j * next] / norm); });
        row.each(matrix.x_length - big, [=](std::int64_t j) { x[big + j] = bf16(0.0f); });
      });
}

/// U = fp32(x[from]), transposed back.
void finish(Stream& stream, const NewtonSchulzTable& table, const Batch& batch, const bf16* scratch, int from) {
  const Matrix* const rows = table.device_rows();
  const std::int64_t first = table.rows()[static_cast<std::size_t>(batch.first)].first_row;
  const std::int64_t end = table.rows()[static_cast<std::size_t>(batch.last)].first_row;
  launch_rows(
      stream, "newton_schulz_finish", end - first, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        const Matrix& matrix = row_of_piece(rows, batch.first, batch.last, &Matrix::first_row, first + r);
        const std::int64_t i = first + r - matrix.first_row;
        const bf16* const x = scratch + matrix.x[from] + (matrix.turned() ? i : i * matrix.x_length);
        const std::int64_t next = matrix.turned() ? matrix.x_length : 1;
        float* const u = matrix.values + i * matrix.columns;
        row.each(matrix.columns, [=](std::int64_t j) { u[j] = static_cast<float>(x[j * next]); });
      });
}

}  // namespace

void newton_schulz(Stream& stream, std::span<const NewtonSchulzStep> steps, const NewtonSchulzTable& table) {
  if (table.count() == 0) return;
  const std::int64_t sums = table.rows().back().first_chunk * std::int64_t{sizeof(double)};
  std::byte* const norms =
      stream.workspace("Newton-Schulz norms", sums + table.count() * std::int64_t{sizeof(float)});
  auto* const scratch = reinterpret_cast<bf16*>(stream.workspace("Newton-Schulz", table.scratch_bytes()));
  auto* const norm = reinterpret_cast<float*>(norms + sums);
  measure(stream, table, reinterpret_cast<double*>(norms), norm);
  for (const Batch& batch : table.batches()) {
    start(stream, table, batch, norm, scratch);
    int at = 0;
    for (const NewtonSchulzStep& step : steps) {
      at = 1 - at;
      newton_schulz_back::step(stream, table, batch, step, scratch, at);
    }
    finish(stream, table, batch, scratch, at);
  }
}

}  // namespace tessera
