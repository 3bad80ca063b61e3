// fp32 to bf16, which every publication of weights is, in accesses of 16 bytes: one block a chunk.
#include "kernels/base/columns.cuh"
#include "kernels/base/launch.hpp"
#include "kernels/convert/back.hpp"

namespace tessera::convert_table {
namespace {

using columns::Lanes;

constexpr int block_threads = 256, lanes = 8;
constexpr int turns = static_cast<int>(ConvertTable::chunk) / (block_threads * lanes);
static_assert(turns * block_threads * lanes == ConvertTable::chunk);

__global__ void __launch_bounds__(block_threads)
    narrow(const ConvertTable::Row* rows, int first, int last, std::int64_t before) {
  const std::int64_t chunk = before + blockIdx.x;
  const ConvertTable::Row pair = rows[pair_of(rows, first, last, chunk)];
  const std::int64_t begin = (chunk - pair.first_chunk) * ConvertTable::chunk;
  const std::int64_t left = pair.count - begin < ConvertTable::chunk ? pair.count - begin : ConvertTable::chunk;
  const float* const in = static_cast<const float*>(pair.from) + begin;
  bf16* const out = static_cast<bf16*>(pair.to) + begin;
  Lanes<float, 4> low[turns], high[turns];
#pragma unroll
  for (int i = 0; i < turns; ++i)
    if (const std::int64_t at = (i * block_threads + threadIdx.x) * lanes; at + lanes <= left) {
      low[i] = Lanes<float, 4>::at(in + at);
      high[i] = Lanes<float, 4>::at(in + at + 4);
    }
#pragma unroll
  for (int i = 0; i < turns; ++i) {
    const std::int64_t at = (i * block_threads + threadIdx.x) * lanes;
    if (at + lanes <= left) {
      Lanes<bf16, lanes> pack;
      for (int l = 0; l < lanes; ++l) pack.value[l] = bf16(l < 4 ? low[i].value[l % 4] : high[i].value[l % 4]);
      pack.to(out + at);
    } else {
      for (std::int64_t j = at; j < left; ++j) out[j] = bf16(in[j]);
    }
  }
}

}  // namespace

bool convert_pairs(Stream& stream, const ConvertTable& table, int first, int last) {
  if (table.to() != DType::bf16 || table.from() != DType::f32 || !table.aligned()) return false;
  stream.count_launch();
  const auto chunk = [&](int pair) { return table.rows()[static_cast<std::size_t>(pair)].first_chunk; };
  const std::int64_t before = chunk(first), blocks = chunk(last) - before;
  if (blocks == 0) return true;
  narrow<<<static_cast<unsigned>(blocks), block_threads, 0, space_of(stream).cuda_stream()>>>(table.memory(), first,
                                                                                              last, before);
  return true;
}

}  // namespace tessera::convert_table
