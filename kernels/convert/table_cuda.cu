// Conversion of fp32 to bf16 in accesses of 16 bytes; every publication of weights in bf16 takes it.
#include <algorithm>

#include "kernels/base/columns.cuh"
#include "kernels/base/cuda.cuh"
#include "kernels/base/launch.hpp"
#include "kernels/base/prefix.hpp"
#include "kernels/convert/back.hpp"

namespace tessera::convert_table {
namespace {

using columns::Lanes;

constexpr int block_threads = 256, lanes = 4, most_blocks = 2048;
constexpr int turns = static_cast<int>(ConvertTable::chunk) / (block_threads * lanes);
static_assert(turns * block_threads * lanes == ConvertTable::chunk);

__device__ void narrow_chunk(bf16* out, const float* in, std::int64_t count) {
  Lanes<float, lanes> from[turns];
#pragma unroll
  for (int i = 0; i < turns; ++i)
    if (const std::int64_t at = (i * block_threads + threadIdx.x) * lanes; at + lanes <= count)
      from[i] = Lanes<float, lanes>::at(in + at);
#pragma unroll
  for (int i = 0; i < turns; ++i) {
    const std::int64_t at = (i * block_threads + threadIdx.x) * lanes;
    if (at + lanes <= count) {
      Lanes<bf16, lanes> to;
      for (int l = 0; l < lanes; ++l) to.value[l] = bf16(from[i].value[l]);
      to.to(out + at);
    } else {
      for (std::int64_t j = at; j < count; ++j) out[j] = bf16(in[j]);
    }
  }
}

/// Converts neighbouring chunks per block, so that each block searches for its first pair only once.
__global__ void __launch_bounds__(block_threads)
    narrow(const ConvertTable::Row* rows, int first, int last, std::int64_t before, std::int64_t chunks) {
  const std::int64_t begin = before + chunks * blockIdx.x / gridDim.x;
  const std::int64_t end = before + chunks * (blockIdx.x + 1) / gridDim.x;
  const ConvertTable::Row* own = &row_of_piece(rows, first, last, &ConvertTable::Row::first_chunk, begin);
  ConvertTable::Row row = *own;
  std::int64_t next = own[1].first_chunk;
  for (std::int64_t chunk = begin; chunk < end; ++chunk) {
    while (chunk >= next) {
      row = *++own;
      next = own[1].first_chunk;
    }
    const std::int64_t at = (chunk - row.first_chunk) * ConvertTable::chunk, left = row.count - at;
    narrow_chunk(static_cast<bf16*>(row.to) + at, static_cast<const float*>(row.from) + at,
                 left < ConvertTable::chunk ? left : ConvertTable::chunk);
  }
}

}  // namespace

bool convert_pairs(Stream& stream, const ConvertTable& table, int first, int last) {
  if (table.to() != DType::bf16 || table.from() != DType::f32 || !table.aligned()) return false;
  stream.count_launch();
  const auto chunk = [&](int pair) { return table.rows()[static_cast<std::size_t>(pair)].first_chunk; };
  const std::int64_t before = chunk(first), chunks = chunk(last) - before;
  if (chunks == 0) return true;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(chunks, most_blocks));
  start_kernel(space_of(stream).cuda_stream(), "convert_table", narrow, {blocks, block_threads}, table.device_rows(),
               first, last, before, chunks);
  return true;
}

}  // namespace tessera::convert_table
