// CUB's radix sort, which is stable: one launch for few keys, else a histogram and one pass for each 8 bits.
#include <cub/device/device_radix_sort.cuh>

#include "kernels/base/cuda.cuh"
#include "kernels/base/launch.hpp"
#include "kernels/sort/back.hpp"

namespace tessera::sorting {
namespace {

/// Scratch for CUB in bytes. Between two passes it holds keys and positions, 8 bytes a key. It also holds counts of
/// digits by tile, at most 1 byte a key, and counts of digits of the passes. CUB itself tells only where a GPU is, and
/// plans are made without one.
std::int64_t scratch_of(std::int64_t n) { return 9 * n + 65536; }

void sort(const Tensor& scratch, std::int32_t* order, std::int32_t* sorted, const std::int32_t* keys,
          const std::int32_t* positions, std::int64_t n, int bits, cudaStream_t queue) {
  const auto call = [&](void* memory, std::size_t& bytes) {
    const cudaError_t code = cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted, positions, order,
                                                             static_cast<int>(n), 0, bits, queue);
    require(code == cudaSuccess, "sort_by_key", cudaGetErrorString(code));
  };
  std::size_t bytes = 0;
  call(nullptr, bytes);
  require(static_cast<std::int64_t>(bytes) <= scratch.bytes(), "sort_by_key", "CUB needs more scratch than planned");
  call(scratch.data, bytes);
}

}  // namespace

void positions_by_key(Stream& stream, Arena& arena, std::int32_t* order, const std::int32_t* keys, std::int64_t n,
                      int bits) {
  const auto temp = [&] { return arena.temp(DType::i32, Shape{n}).as<std::int32_t>(); };
  std::int32_t *const sorted = temp(), *const positions = temp();
  const Tensor scratch = arena.temp(DType::u8, Shape{scratch_of(n)});
  launch(stream, "sort_positions", n, KOKKOS_LAMBDA(std::int64_t i) { positions[i] = static_cast<std::int32_t>(i); });
  stream.count_launch();
  if (!stream.dry() && n > 0) sort(scratch, order, sorted, keys, positions, n, bits, space_of(stream).cuda_stream());
}

}  // namespace tessera::sorting
