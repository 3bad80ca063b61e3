// Embeddings in packs. Gradients: a thread takes four columns of one row of a table and keeps their sums in registers.
#include "kernels/base/packs.cuh"
#include "kernels/embedding/back.hpp"

namespace tessera::embedding {
namespace {

using columns::Lanes;

constexpr int width = 4;

/// The first summand: the table's old row times beta.
struct Start {
  float* sum;
  float beta;
  __device__ Lanes<float, width> operator()(std::int64_t at) const {
    Lanes<float, width> total{};
    if (beta == 0) return total;
    total = Lanes<float, width>::at(sum + at);
    for (float& v : total.value) v *= beta;
    return total;
  }
};

template <class T>
__device__ void add(Lanes<float, width>& total, const T* dy) {
  const auto up = Lanes<T, width>::at(dy);
  for (int l = 0; l < width; ++l) total.value[l] += float(up.value[l]);
}

template <class T>
struct OfTokens {
  Start start;
  const T* dy;
  const std::int32_t *order, *offsets;
  std::int64_t columns;
  __device__ void operator()(std::int64_t token, int p) const {
    const std::int32_t begin = offsets[token], end = offsets[token + 1];
    if (start.beta == 1 && begin == end) return;
    const std::int64_t column = std::int64_t{p} * width, at = token * columns + column;
    Lanes<float, width> total = start(at);
    for (std::int32_t i = begin; i < end; ++i) add(total, dy + order[i] * columns + column);
    total.to(start.sum + at);
  }
};

template <class T>
struct OfPositions {
  Start start;
  const T* dy;
  std::int64_t rows, length, columns;
  __device__ void operator()(std::int64_t position, int p) const {
    const std::int64_t column = std::int64_t{p} * width, at = position * columns + column;
    Lanes<float, width> total = start(at);
#pragma unroll 8
    for (std::int64_t m = position; m < rows; m += length) add(total, dy + m * columns + column);
    total.to(start.sum + at);
  }
};

template <class T>
struct Forward {
  T* y;
  const std::int32_t* ids;
  const T *tokens, *positions;
  std::int64_t length, row_size;
  __device__ void operator()(std::int64_t row, int p) const {
    using Pack = packs::Pack<T>;
    const std::int64_t column = std::int64_t{p} * packs::lanes<T>;
    Pack sum = Pack::at(tokens + ids[row] * row_size + column);
    if (positions != nullptr) {
      auto token = columns::wide(sum);
      const auto place = columns::wide(Pack::at(positions + row % length * row_size + column));
      for (int l = 0; l < packs::lanes<T>; ++l) token.value[l] += place.value[l];
      sum = columns::rounded<T>(token.value);
    }
    sum.to(y + row * row_size + column);
  }
};

/// Calls f<T>() for bf16 and fp32 if rows are whole groups of four; false otherwise.
template <class F>
bool in_packs(const Tensor& dy, const Tensor& sum, const F& f) {
  if (dy.columns() % width != 0 || !columns::aligned(dy) || !columns::aligned(sum)) return false;
  if (dy.type == DType::bf16)
    f.template operator()<bf16>();
  else if (dy.type == DType::f32)
    f.template operator()<float>();
  else
    return false;
  return true;
}

}  // namespace

bool forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& tokens, const Tensor& positions) {
  const auto start = [&]<class T>() {
    const std::int64_t n = y.columns();
    if (!packs::whole<T>(n, y, tokens, positions)) return false;
    const Forward<T> f{y.as<T>(),
                       ids.as<std::int32_t>(),
                       tokens.as<T>(),
                       positions ? positions.as<T>() : nullptr,
                       positions ? positions.rows() : 1,
                       n};
    packs::start_rows(stream, y.rows(), n / packs::lanes<T>, f);
    return true;
  };
  if (y.type == DType::f64) return false;
  return y.type == DType::bf16 ? start.operator()<bf16>() : start.operator()<float>();
}

bool token_gradient(Stream& stream, const Gradient& dtokens, const Tensor& order, const Tensor& offsets,
                    const Tensor& dy) {
  const std::int64_t n = dy.columns();
  return in_packs(dy, dtokens.sum, [&]<class T>() {
    const OfTokens<T> f{
        {dtokens.sum.as<float>(), dtokens.beta}, dy.as<T>(), order.as<std::int32_t>(), offsets.as<std::int32_t>(), n};
    packs::start_rows(stream, dtokens.sum.rows(), n / width, f);
  });
}

bool position_gradient(Stream& stream, const Gradient& dpositions, const Tensor& dy) {
  const std::int64_t n = dy.columns();
  return in_packs(dy, dpositions.sum, [&]<class T>() {
    const OfPositions<T> f{
        {dpositions.sum.as<float>(), dpositions.beta}, dy.as<T>(), dy.rows(), dpositions.sum.rows(), n};
    packs::start_rows(stream, dpositions.sum.rows(), n / width, f);
  });
}

}  // namespace tessera::embedding
