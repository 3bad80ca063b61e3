#pragma once
#include <span>
#include <vector>

#include "kernels/base/device_table.hpp"
#include "kernels/base/stream.hpp"

namespace tessera {

/// One step, X <- a X + (b A + c A A) X with A = X X^T.
struct NewtonSchulzStep {
  float a = 0, b = 0, c = 0;
};

/// A matrix U [rows, columns] and its X [small, big], which is U or its transpose. In scratch, rows of X are x_length
/// elements apart and rows of A and B, [small, small], a_length; the padding between them is zero.
struct NewtonSchulzRow {
  float* values;
  std::int64_t rows, columns, small, big, x_length, a_length;
  std::int64_t x[2], a, b;  ///< offsets in the batch's scratch, in elements
  /// Number of its first piece of each kind, counted over the table: chunks, rows of X and of U, tiles of A's upper
  /// triangle and of X.
  std::int64_t first_chunk, first_x_row, first_row, first_upper_tile, first_tile;
  std::int64_t index;  ///< of the matrix, in the order given
  TESSERA_FN bool turned() const { return rows > columns; }
};

/// The matrices of a newton_schulz(), the largest first, followed by one row with the end of every count.
class NewtonSchulzTable : public DeviceTable<NewtonSchulzRow> {
 public:
  /// Elements whose squares are summed at a time.
  static constexpr std::int64_t chunk = 1024;

  /// A range of rows that are computed together.
  struct Batch {
    std::int64_t first, last;
  };

  /// Matrices fp32 [rows, columns]. Throws Error{internal} for anything else.
  explicit NewtonSchulzTable(std::span<const Tensor> matrices = {});

  static constexpr std::int64_t bytes_of(std::int64_t matrices) { return DeviceTable::bytes_of(matrices + 1); }
  std::int64_t count() const { return std::ssize(rows()) - 1; }
  const std::vector<Batch>& batches() const { return batches_; }
  std::int64_t scratch_bytes() const { return scratch_bytes_; }  ///< largest scratch of any batch

 private:
  std::vector<Batch> batches_;
  std::int64_t scratch_bytes_ = 0;
};

/// Newton-Schulz orthogonalisation: replaces every matrix U of the table by an approximation of the nearest orthogonal
/// one. n = fp32(sqrt(sum of squares in fp64)); X = bf16(U / max(n, 1e-15)), transposed if U has more rows than
/// columns; for each step A = bf16(X X^T), B = bf16(b A + c A A), X = bf16(a X + B X); U = fp32(X), transposed back.
/// Factors are bf16, sums fp32; each combination is computed in fp32 and rounded once. The bits of a matrix do not
/// depend on the other matrices of the table. Scratch is the stream's. Orders on `stream`. Local. Source: Jordan 2024
/// (Muon).
void newton_schulz(Stream& stream, std::span<const NewtonSchulzStep> steps, const NewtonSchulzTable& table);

}  // namespace tessera
