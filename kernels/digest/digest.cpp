#include "kernels/digest/digest.hpp"

#include <bit>
#include <type_traits>

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"

namespace tessera {
namespace {

constexpr std::uint64_t phi = 0x9E3779B97F4A7C15u;

// The stored bits of x, zero-extended to 64.
template <class T>
TESSERA_FN constexpr std::uint64_t bits_of(T x) {
  if constexpr (std::is_same_v<T, bf16>)
    return x.bits;
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<std::uint64_t>(x);
  else if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<std::uint32_t>(x);
  else
    return static_cast<std::make_unsigned_t<T>>(x);
}

// A walk over `rows` rows of `columns` elements, `stride` apart, that stops at element `end`. The element in row r and
// column v counts as position first + r columns + v.
struct ElementWalk {
  std::int64_t rows, columns, stride, end;
  std::uint64_t first;
};

template <class T>
void digest_as(Stream& stream, std::uint64_t* sum, const Tensor& data, const ElementWalk& walk) {
  const auto x = view_of<T>(data);
  launch_rows(
      stream, "digest", walk.rows, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        const std::int64_t begin = r * walk.stride;
        const std::int64_t count = walk.end - begin < walk.columns ? walk.end - begin : walk.columns;
        const std::uint64_t position = walk.first + static_cast<std::uint64_t>(r * walk.columns) + 1;
        const auto part = row.template sum<std::uint64_t>(count, [&](std::int64_t j) {
          return mix64(bits_of(x(begin + j)) ^ ((position + static_cast<std::uint64_t>(j)) * phi));
        });
        row.once([&] { Kokkos::atomic_add(sum, part); });
      });
}

void dispatch_digest(Stream& stream, std::uint64_t* sum, const Tensor& data, const ElementWalk& walk) {
  switch (data.type) {
    case DType::f64:
      return digest_as<double>(stream, sum, data, walk);
    case DType::f32:
      return digest_as<float>(stream, sum, data, walk);
    case DType::bf16:
      return digest_as<bf16>(stream, sum, data, walk);
    case DType::u8:
      return digest_as<std::uint8_t>(stream, sum, data, walk);
    case DType::u16:
      return digest_as<std::uint16_t>(stream, sum, data, walk);
    case DType::i32:
      return digest_as<std::int32_t>(stream, sum, data, walk);
    case DType::i64:
      return digest_as<std::int64_t>(stream, sum, data, walk);
    case DType::u64:
      return digest_as<std::uint64_t>(stream, sum, data, walk);
  }
}

}  // namespace

std::string hex(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = "0123456789abcdef"[value >> (60 - 4 * i) & 15];
  return text;
}

void digest(Stream& stream, std::uint64_t* sum, const Tensor& data, std::uint64_t first) {
  constexpr std::int64_t chunk = 4096;
  const std::int64_t n = data.elements();
  dispatch_digest(stream, sum, data, {ceil_div(n, chunk), chunk, chunk, n, first});
}

void digest_rows(Stream& stream, std::uint64_t* sum, const Tensor& data, std::int64_t valid, std::uint64_t first_row) {
  require(data.shape.rank() == 2 && valid >= 0 && valid <= data.columns(), "digest_rows",
          "data is [M, columns] and valid at most columns");
  const std::int64_t rows = valid == 0 ? 0 : data.rows();
  const std::uint64_t first = first_row * static_cast<std::uint64_t>(valid);
  dispatch_digest(stream, sum, data, {rows, valid, data.columns(), data.elements(), first});
}

}  // namespace tessera
