// Activations in accesses of 16 bytes.
#include <type_traits>

#include "kernels/activation/back.hpp"
#include "kernels/activation/by_instructions.cuh"
#include "kernels/base/packs.cuh"

namespace tessera::activation {
namespace {

using packs::lanes, packs::Pack;

/// bf16 uses the GPU's own exponential and reciprocal; fp32 needs the project's functions, whose error is smaller.
template <class T>
inline constexpr bool by_instructions = std::is_same_v<T, bf16>;

template <class T>
__device__ float gelu_for(float x) {
  if constexpr (by_instructions<T>)
    return fast_gelu(x);
  else
    return gelu_of(x);
}
template <class T>
__device__ float gelu_slope_for(float x) {
  if constexpr (by_instructions<T>)
    return fast_gelu_slope(x);
  else
    return gelu_slope(x);
}
template <class T>
__device__ float sigmoid_for(float x) {
  if constexpr (by_instructions<T>)
    return fast_sigmoid(x);
  else
    return sigmoid(x);
}

template <class T>
struct Gelu {
  T* y;
  const T* pre;
  const std::int32_t* end;
  std::int64_t columns;
  __device__ void operator()(std::int64_t i) const {
    if (end != nullptr && i * lanes<T> >= *end * columns) return;
    auto v = Pack<T>::at(pre + i * lanes<T>);
    for (int l = 0; l < lanes<T>; ++l) v.value[l] = T(gelu_for<T>(float(v.value[l])));
    v.to(y + i * lanes<T>);
  }
};

template <class T>
struct GeluBackward {
  T* dpre;
  const T *dy, *pre;
  const std::int32_t* end;
  std::int64_t columns;
  __device__ void operator()(std::int64_t i) const {
    if (end != nullptr && i * lanes<T> >= *end * columns) return;
    auto d = Pack<T>::at(dy + i * lanes<T>);
    const auto x = Pack<T>::at(pre + i * lanes<T>);
    for (int l = 0; l < lanes<T>; ++l) d.value[l] = T(float(d.value[l]) * gelu_slope_for<T>(float(x.value[l])));
    d.to(dpre + i * lanes<T>);
  }
};

template <class T>
struct Swiglu {
  T* y;
  const T* gate_up;
  std::int64_t columns;
  const std::int32_t* end;
  __device__ void operator()(std::int64_t row, int p) const {
    if (behind(end, row)) return;
    const std::int64_t at = row * columns + p * lanes<T>;
    auto gate = Pack<T>::at(gate_up + at + row * columns);
    const auto up = Pack<T>::at(gate_up + at + (row + 1) * columns);
    for (int l = 0; l < lanes<T>; ++l) {
      const auto g = float(gate.value[l]);
      gate.value[l] = T(swiglu(sigmoid_for<T>(g), g, float(up.value[l])));
    }
    gate.to(y + at);
  }
};

template <class T>
struct SwigluBackward {
  T* dgate_up;
  const T *dy, *gate_up;
  std::int64_t columns;
  const std::int32_t* end;
  __device__ void operator()(std::int64_t row, int p) const {
    if (behind(end, row)) return;
    const std::int64_t at = row * columns + p * lanes<T>, low = at + row * columns, high = low + columns;
    const auto d = Pack<T>::at(dy + at);
    auto gate = Pack<T>::at(gate_up + low), up = Pack<T>::at(gate_up + high);
    for (int l = 0; l < lanes<T>; ++l) {
      float dgate, dup;
      const auto g = float(gate.value[l]);
      swiglu_slopes(sigmoid_for<T>(g), g, float(up.value[l]), float(d.value[l]), dgate, dup);
      gate.value[l] = T(dgate);
      up.value[l] = T(dup);
    }
    gate.to(dgate_up + low), up.to(dgate_up + high);
  }
};

/// Calls f<T>() for a type and a number of columns whose rows are whole packs of 16 bytes; false for others.
template <class F, class... Tensors>
bool in_packs(DType type, std::int64_t columns, const F& f, const Tensors&... tensors) {
  const bool wide = type == DType::f32;
  if (!wide && type != DType::bf16) return false;
  if (!(wide ? packs::whole<float>(columns, tensors...) : packs::whole<bf16>(columns, tensors...))) return false;
  if (wide)
    f.template operator()<float>();
  else
    f.template operator()<bf16>();
  return true;
}

}  // namespace

bool gelu_forward(Stream& stream, const Tensor& y, const Tensor& pre, const Tensor& end) {
  const std::int64_t n = y.elements();
  return in_packs(y.type, end ? y.columns() : n, [&]<class T>() {
    packs::start(stream, n / lanes<T>, Gelu<T>{y.as<T>(), pre.as<T>(), end_of(end), pre.columns()});
  }, y, pre);
}

bool gelu_backward(Stream& stream, const Tensor& dpre, const Tensor& dy, const Tensor& pre, const Tensor& end) {
  const std::int64_t n = pre.elements();
  return in_packs(pre.type, end ? pre.columns() : n, [&]<class T>() {
    const GeluBackward<T> f{dpre.as<T>(), dy.as<T>(), pre.as<T>(), end_of(end), pre.columns()};
    packs::start(stream, n / lanes<T>, f);
  }, dpre, dy, pre);
}

bool swiglu_forward(Stream& stream, const Tensor& y, const Tensor& gate_up, const Tensor& end) {
  const std::int64_t n = y.columns();
  return in_packs(y.type, n, [&]<class T>() {
    packs::start_rows(stream, y.rows(), n / lanes<T>, Swiglu<T>{y.as<T>(), gate_up.as<T>(), n, end_of(end)});
  }, y, gate_up);
}

bool swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up,
                     const Tensor& end) {
  const std::int64_t n = dy.columns();
  return in_packs(dy.type, n, [&]<class T>() {
    const SwigluBackward<T> f{dgate_up.as<T>(), dy.as<T>(), gate_up.as<T>(), n, end_of(end)};
    packs::start_rows(stream, dy.rows(), n / lanes<T>, f);
  }, dgate_up, dy, gate_up);
}

}  // namespace tessera::activation
