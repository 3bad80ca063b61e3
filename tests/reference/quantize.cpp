#include "tests/reference/quantize.hpp"

#include <bit>
#include <utility>

#include "kernels/random/philox.hpp"

namespace tessera::reference {

DrawByte draw_bytes(RandomKey key, std::vector<std::int64_t> rows, std::int64_t columns) {
  return [key, rows = std::move(rows), columns](std::int64_t row, std::int64_t column) {
    const auto i = static_cast<std::uint64_t>(rows[static_cast<std::size_t>(row)] * columns + column), at = i / 16;
    const PhiloxBlock block =
        philox({{static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32),
                 static_cast<std::uint32_t>(key.stream), static_cast<std::uint32_t>(key.stream >> 32)}},
               key.seed);
    std::uint8_t bytes[16];
    std::memcpy(bytes, block.word, sizeof bytes);
    return std::uint32_t{bytes[i % 16]};
  };
}

std::vector<float> rounded_to_bf16(const std::vector<float>& values) {
  std::vector<float> rounded;
  for (float v : values) rounded.push_back(bf16(v));
  return rounded;
}

std::vector<float> hadamard(Matrix m, const std::vector<float>& x) {
  std::vector<float> y = x;
  for (std::int64_t first = 0; first < m.rows; first += 16)
    for (std::int64_t c = 0; c < m.columns; ++c) {
      float v[16];
      for (int r = 0; r < 16; ++r) {
        const float value = x[static_cast<std::size_t>((first + r) * m.columns + c)];
        v[r] = (0xD7E8 >> r & 1) != 0 ? -value : value;
      }
      for (int stride = 1; stride < 16; stride *= 2)
        for (int r = 0; r < 16; ++r)
          if ((r & stride) == 0) {
            const float a = v[r], b = v[r + stride];
            v[r] = a + b;
            v[r + stride] = a - b;
          }
      for (int r = 0; r < 16; ++r) y[static_cast<std::size_t>((first + r) * m.columns + c)] = v[r] * 0.25f;
    }
  return y;
}

float largest(Matrix m, const std::vector<float>& x, std::int64_t row, std::int64_t rows, std::int64_t column,
              std::int64_t columns) {
  float top = 0;
  for (std::int64_t r = row; r < row + rows; ++r)
    for (std::int64_t c = column; c < column + columns; ++c) {
      const float a = std::fabs(x[static_cast<std::size_t>(r * m.columns + c)]);
      if (a > top) top = a;
    }
  return top;
}

}  // namespace tessera::reference
