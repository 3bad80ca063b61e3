// Newton-Schulz on tensor cores. One launch computes one product of all matrices of a batch; a block computes a tile
// and combines it in registers. A and B are symmetric: only their upper triangle is computed, and stored twice.
#include "kernels/base/cuda.cuh"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/base/prefix.hpp"
#include "kernels/gemm/tensor_cores.cuh"
#include "kernels/newton_schulz/back.hpp"

namespace tessera::newton_schulz_back {
namespace {

using gemm::Stored;
using gemm::TensorTile;
using gemm::TileSource;
using Matrix = NewtonSchulzTable::Row;

static_assert(TensorTile::m == tile && TensorTile::n == tile);

/// One product of a batch's matrices.
struct Job {
  const Matrix* rows;
  NewtonSchulzTable::Batch batch;
  std::int64_t first_tile;  ///< of the batch, counted over the table
  bf16* scratch;
  int from;
  NewtonSchulzStep step;
};

/// What a block works on: a matrix, and the first row and column of a tile.
struct TilePosition {
  const Matrix& matrix;
  int row, column;
};

__device__ inline TilePosition upper_tile(const Job& job) {
  const std::int64_t piece = job.first_tile + blockIdx.x;
  const Matrix& matrix =
      row_of_piece(job.rows, job.batch.first, job.batch.last, &Matrix::first_upper_tile, piece);
  int row = static_cast<int>(piece - matrix.first_upper_tile), column = 0;
  for (; row > column; ++column) row -= column + 1;
  return {matrix, row * TensorTile::m, column * TensorTile::n};
}

__device__ inline TilePosition any_tile(const Job& job) {
  const std::int64_t piece = job.first_tile + blockIdx.x;
  const Matrix& matrix = row_of_piece(job.rows, job.batch.first, job.batch.last, &Matrix::first_tile, piece);
  const int index = static_cast<int>(piece - matrix.first_tile);
  const int across = (static_cast<int>(matrix.x_length) + TensorTile::n - 1) / TensorTile::n;
  return {matrix, index / across * TensorTile::m, index % across * TensorTile::n};
}

/// out[i,j] = out[j,i] = f(i, j, sum) for i <= j. Also fills the columns behind the last one, up to the row's length.
template <class F>
__device__ void store_symmetric(const TensorTile& sums, const TilePosition& at, bf16* out, const F& f) {
  const int small = static_cast<int>(at.matrix.small), length = static_cast<int>(at.matrix.a_length);
  const auto store = [&](int i, int j, float sum) {
    if (i > j || i >= small || j >= length) return;
    const bf16 value(f(i, j, sum));
    out[std::int64_t{i} * length + j] = value;
    if (i < j && j < small) out[std::int64_t{j} * length + i] = value;
  };
  sums.each_pair([&](int r, int c, float first, float second) {
    store(at.row + r, at.column + c, first);
    store(at.row + r, at.column + c + 1, second);
  });
}

/// A = bf16(X X^T).
__global__ void __launch_bounds__(TensorTile::threads, 2) gram_tiles(const __grid_constant__ Job job) {
  const TilePosition at = upper_tile(job);
  const bf16* const x = job.scratch + at.matrix.x[job.from];
  const int length = static_cast<int>(at.matrix.x_length), small = static_cast<int>(at.matrix.small);
  TensorTile sums;
  sums.multiply<Stored::plain, Stored::transposed>(TileSource{x, length, at.row, small, 0, length},
                                                   TileSource{x, length, at.column, small, 0, length});
  store_symmetric(sums, at, job.scratch + at.matrix.a, [](int, int, float sum) { return sum; });
}

/// B = bf16(b A + c A A); A is symmetric.
__global__ void __launch_bounds__(TensorTile::threads, 2) polynomial_tiles(const __grid_constant__ Job job) {
  const TilePosition at = upper_tile(job);
  const bf16* const a = job.scratch + at.matrix.a;
  const int length = static_cast<int>(at.matrix.a_length), small = static_cast<int>(at.matrix.small);
  TensorTile sums;
  sums.multiply<Stored::plain, Stored::transposed>(TileSource{a, length, at.row, small, 0, length},
                                                   TileSource{a, length, at.column, small, 0, length});
  store_symmetric(sums, at, job.scratch + at.matrix.b, [&](int i, int j, float sum) {
    return job.step.b * static_cast<float>(a[std::int64_t{i} * length + j]) + job.step.c * sum;
  });
}

/// X = bf16(a X + B X), from one of the two X to the other.
__global__ void __launch_bounds__(TensorTile::threads, 2) update_tiles(const __grid_constant__ Job job) {
  const TilePosition at = any_tile(job);
  const bf16 *const x = job.scratch + at.matrix.x[job.from], *const b = job.scratch + at.matrix.b;
  bf16* const out = job.scratch + at.matrix.x[1 - job.from];
  const int length = static_cast<int>(at.matrix.x_length), small = static_cast<int>(at.matrix.small),
            a_length = static_cast<int>(at.matrix.a_length);
  TensorTile sums;
  sums.multiply<Stored::plain, Stored::plain>(TileSource{b, a_length, at.row, small, 0, a_length},
                                              TileSource{x, length, at.column, length, 0, small});
  sums.each_pair([&](int r, int c, float first, float second) {
    const int i = at.row + r, j = at.column + c;
    if (i >= small || j >= length) return;
    const std::int64_t to = std::int64_t{i} * length + j;  // rows have an even length
    const std::uint32_t low = bf16(job.step.a * static_cast<float>(x[to]) + first).bits,
                        high = bf16(job.step.a * static_cast<float>(x[to + 1]) + second).bits;
    *reinterpret_cast<std::uint32_t*>(out + to) = low | high << 16;
  });
}

template <class Kernel>
void launch_tiles(Stream& stream, Kernel* kernel, Job job, const NewtonSchulzTable& table,
                  std::int64_t Matrix::*first_tile) {
  stream.count_launch();
  if (stream.dry()) return;
  job.first_tile = table.rows()[static_cast<std::size_t>(job.batch.first)].*first_tile;
  const std::int64_t end = table.rows()[static_cast<std::size_t>(job.batch.last)].*first_tile;
  const auto tiles = static_cast<unsigned>(end - job.first_tile);
  start_kernel(space_of(stream).cuda_stream(), "newton_schulz", kernel,
               {tiles, TensorTile::threads, TensorTile::shared_bytes}, job);
}

}  // namespace

/// Rows begin at multiples of 16 bytes, so their length is a multiple of 8 elements.
std::int64_t row_length(std::int64_t columns) { return round_up(columns, 8); }
/// Room for five or six matrices of 6400 x 1600, which are some hundred tiles for each multiprocessor.
std::int64_t batch_bytes() { return std::int64_t{256} << 20; }

void step(Stream& stream, const NewtonSchulzTable& table, const NewtonSchulzTable::Batch& batch,
          const NewtonSchulzStep& coefficients, bf16* scratch, int to) {
  const Job job{table.device_rows(), batch, 0, scratch, 1 - to, coefficients};
  launch_tiles(stream, gram_tiles, job, table, &Matrix::first_upper_tile);
  launch_tiles(stream, polynomial_tiles, job, table, &Matrix::first_upper_tile);
  launch_tiles(stream, update_tiles, job, table, &Matrix::first_tile);
}

}  // namespace tessera::newton_schulz_back
