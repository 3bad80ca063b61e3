#include "kernels/random/random.hpp"

#include <algorithm>
#include <string>

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/digest/digest.hpp"
#include "kernels/random/normal.hpp"
#include "kernels/random/philox.hpp"

namespace tessera {
namespace {

// Elements of a row of work: enough to vectorise on the host, few enough to fill a GPU with rows.
constexpr std::int64_t chunk = 2048;

TESSERA_FN constexpr PhiloxBlock counter_of(std::uint64_t stream, std::uint64_t index) {
  return {{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
           static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)}};
}

template <class T>
void fill_normal_as(Stream& stream, const Tensor& out, RandomKey key, std::uint64_t first, double deviation) {
  const auto y = view_of<T>(out);
  const std::int64_t n = out.elements();
  launch_rows(
      stream, "fill_normal", ceil_div(n, chunk), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        const std::int64_t begin = r * chunk, count = n - begin < chunk ? n - begin : chunk;
        row.each(count, [&](std::int64_t j) {
          const std::uint64_t index = first + static_cast<std::uint64_t>(begin + j);
          y(begin + j) = static_cast<T>(deviation * normal_from(philox(counter_of(key.stream, index), key.seed)));
        });
      });
}

template <class T>
void fill_as(Stream& stream, const Tensor& out, T value) {
  const auto y = view_of<T>(out);
  const std::int64_t n = out.elements();
  launch_rows(
      stream, "fill", ceil_div(n, chunk), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        const std::int64_t begin = r * chunk, count = n - begin < chunk ? n - begin : chunk;
        row.each(count, [&](std::int64_t j) { y(begin + j) = value; });
      });
}

}  // namespace

RandomKey random_key(std::uint64_t seed, std::string_view purpose, std::string_view name, std::uint64_t step) {
  std::string text(purpose);
  text.append(":").append(name).append(":").append(std::to_string(step));
  return {seed, fnv1a64(text)};
}

std::uint64_t random_bits(RandomKey key, std::uint64_t index) {
  const PhiloxBlock random = philox(counter_of(key.stream, index), key.seed);
  return (std::uint64_t{random.word[1]} << 32) | random.word[0];
}

void fill_normal(Stream& stream, const Tensor& out, RandomKey key, std::uint64_t first, double deviation) {
  require(out.type == DType::f32 || out.type == DType::f64, "fill_normal", "out is f32 or f64");
  if (out.type == DType::f32)
    fill_normal_as<float>(stream, out, key, first, deviation);
  else
    fill_normal_as<double>(stream, out, key, first, deviation);
}

void fill(Stream& stream, const Tensor& out, double value) {
  dispatch_real(out.type, "fill", [&]<class T>() {
    if constexpr (std::is_same_v<T, double>)
      fill_as<T>(stream, out, value);
    else
      fill_as<T>(stream, out, T(static_cast<float>(value)));
  });
}

}  // namespace tessera
