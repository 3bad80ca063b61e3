// Rotary positions in accesses of 16 bytes.
#include "kernels/attention/back.hpp"
#include "kernels/base/packs.cuh"

namespace tessera::attention {
namespace {

using packs::lanes, packs::Pack;

/// Packs in the lower halves of a token's heads, each rotated with its partner in the upper half.
template <class T>
struct Rotate {
  T* qkv;
  const float* table;
  std::int64_t columns;
  unsigned length, dim, half;
  float sign;
  const std::int32_t* positions;  ///< null: places in sequences

  __device__ void operator()(std::int64_t token, int p) const {
    const unsigned width = half / lanes<T>, head = static_cast<unsigned>(p) / width;
    const unsigned j = (static_cast<unsigned>(p) - head * width) * lanes<T>;
    T* const x = qkv + token * columns + head * dim + j;
    const unsigned place = positions != nullptr ? static_cast<unsigned>(positions[token])
                                                : static_cast<unsigned>(token) % length;
    const float* const angle = table + std::int64_t{2} * half * place + j;
    auto low = Pack<T>::at(x), high = Pack<T>::at(x + half);
    for (int l = 0; l < lanes<T>; l += 4) {
      const auto cosines = Pack<float>::at(angle + l), sines = Pack<float>::at(angle + half + l);
      for (int i = 0; i < 4; ++i) {
        const float cosine = cosines.value[i], sine = sign * sines.value[i];
        const float a = static_cast<float>(low.value[l + i]), b = static_cast<float>(high.value[l + i]);
        low.value[l + i] = T(a * cosine - b * sine);
        high.value[l + i] = T(b * cosine + a * sine);
      }
    }
    low.to(x), high.to(x + half);
  }
};

template <class T>
bool rotate(Stream& stream, const AttentionShape& shape, const Tensor& qkv, const Tensor& table, float sign,
            const Tensor& positions) {
  const std::int64_t half = table.columns() / 2, tokens = shape.sequences * shape.length;
  if (!packs::whole<T>(half, qkv, table) || shape.head_dim % lanes<T> != 0 || half % 4 != 0 || tokens > 0x7FFFFFFF)
    return false;
  const Rotate<T> f{qkv.as<T>(), table.as<float>(), shape.columns(), static_cast<unsigned>(shape.length),
                    static_cast<unsigned>(shape.head_dim), static_cast<unsigned>(half), sign,
                    positions ? positions.as<std::int32_t>() : nullptr};
  packs::start_rows(stream, tokens, (shape.heads + shape.kv_heads) * half / lanes<T>, f);
  return true;
}

}  // namespace

bool rotary(Stream& stream, const AttentionShape& shape, const Tensor& qkv, const Tensor& table, float sign,
            const Tensor& positions) {
  if (qkv.type == DType::bf16) return rotate<bf16>(stream, shape, qkv, table, sign, positions);
  return qkv.type == DType::f32 && rotate<float>(stream, shape, qkv, table, sign, positions);
}

}  // namespace tessera::attention
