// Moves rows between tokens and experts in accesses of 16 bytes.
#include "kernels/base/packs.cuh"
#include "kernels/moe/back.hpp"

namespace tessera::moe {
namespace {

using packs::lanes, packs::Pack;

template <class T>
struct Gather {
  T* out;
  const T* in;
  const std::int32_t* token;
  std::int64_t columns;
  __device__ void operator()(std::int64_t row, int p) const {
    const std::int64_t m = token[row], at = std::int64_t{p} * lanes<T>;
    Pack<T> pack;
    for (T& v : pack.value) v = T(0.0f);
    if (m >= 0) pack = Pack<T>::at(in + m * columns + at);
    pack.to(out + row * columns + at);
  }
};

// Dispatch to the ranks of the experts: reads a pack of a token and writes it into each of its rows.
template <class T>
struct Send {
  RowsAtPeers<T> out;
  const T* in;
  const float* weights;  // null: 1
  std::int64_t k;
  __device__ void operator()(std::int64_t m, int p) const {
    const std::int64_t at = std::int64_t{p} * lanes<T>;
    const auto pack = Pack<T>::at(in + m * out.columns + at);
    for (std::int64_t slot = m * k; slot < (m + 1) * k; ++slot) {
      T* const row = out.at(slot);
      if (row == nullptr) continue;
      Pack<T> sent = pack;
      if (weights != nullptr)
        for (T& v : sent.value) v = T(weights[slot] * static_cast<float>(v));
      sent.to(row + at);
    }
  }
};

// Rows: the addresses of slots' rows; null where a row is 0.
template <class T, class Rows>
struct SumSlots {
  T *out, *kept;  // null: not wanted
  Rows in;
  const std::int32_t* row_of_slot;
  const float* weights;  // null: 1
  const T *first, *behind;  // null: 0
  std::int64_t k;
  __device__ void operator()(std::int64_t m, int p) const {
    const std::int32_t* const rows = row_of_slot + m * k;
    const std::int64_t at = std::int64_t{p} * lanes<T>;
    float total[lanes<T>] = {};
    if (first != nullptr) {
      const auto from = Pack<T>::at(first + m * in.columns + at);
      for (int l = 0; l < lanes<T>; ++l) total[l] = static_cast<float>(from.value[l]);
    }
    std::int32_t last = -1;
    for (std::int64_t step = 0; step < k; ++step) {
      const std::int64_t j = slot_after(last, rows, k);
      if (j < 0) break;  // the others were dropped
      last = rows[j];
      const T* const row = in.at(m * k + j);
      Pack<T> from;
      for (T& v : from.value) v = T(0.0f);
      if (row != nullptr) from = Pack<T>::at(row + at);
      if (kept != nullptr) from.to(kept + last * in.columns + at);
      if (row == nullptr) continue;
      const float weight = weights != nullptr ? weights[m * k + j] : 1.0f;
      for (int l = 0; l < lanes<T>; ++l) total[l] += weight * static_cast<float>(from.value[l]);
    }
    if (out == nullptr) return;
    if (behind != nullptr) {
      const auto from = Pack<T>::at(behind + m * in.columns + at);
      for (int l = 0; l < lanes<T>; ++l) total[l] += static_cast<float>(from.value[l]);
    }
    Pack<T> sum;
    for (int l = 0; l < lanes<T>; ++l) sum.value[l] = T(total[l]);
    sum.to(out + m * in.columns + at);
  }
};

/// Backward of combine, one warp per token. dy_rows may be y_rows, since each lane reads a pack before it writes it, or
/// null.
template <class T>
struct CombineBackward {
  T* dy_rows;
  float* dweight;
  const T *dy, *y_rows;
  const float* weights;
  const std::int32_t* row_of_slot;
  std::int64_t columns, k;
  __device__ void operator()(std::int64_t m, int lane) const {
    for (std::int64_t s = m * k; s < (m + 1) * k; ++s) {
      if (row_of_slot[s] < 0) {
        if (lane == 0) dweight[s] = 0;
        continue;
      }
      const std::int64_t row = row_of_slot[s] * columns;
      const float weight = weights[s];
      float along = 0;
      for (std::int64_t c = lane * lanes<T>; c < columns; c += 32 * lanes<T>) {
        const auto g = Pack<T>::at(dy + m * columns + c), y = Pack<T>::at(y_rows + row + c);
        Pack<T> d;
        for (int l = 0; l < lanes<T>; ++l) {
          const auto up = static_cast<float>(g.value[l]);
          along += up * static_cast<float>(y.value[l]);
          d.value[l] = T(weight * up);
        }
        if (dy_rows != nullptr) d.to(dy_rows + row + c);
      }
      along = packs::warp_sum(along);
      if (lane == 0) dweight[s] = along;
    }
  }
};

template <class T>
T* as_or_null(const Tensor& tensor) {
  return tensor ? tensor.as<T>() : nullptr;
}

template <class T>
bool gather_as(Stream& stream, const Tensor& x_rows, const Tensor& x, const Routing& routing) {
  const std::int64_t n = x.columns();
  if (!packs::whole<T>(n, x_rows, x)) return false;
  const Gather<T> f{x_rows.as<T>(), x.as<T>(), routing.token_of_row.as<std::int32_t>(), n};
  packs::start_rows(stream, x_rows.rows(), n / lanes<T>, f);
  return true;
}

template <class T>
bool send_as(Stream& stream, const Tensor& rows, const Tensor& x, const Tensor& weights, const Routing& routing,
             const PeerRows& peers) {
  const std::int64_t n = x.columns();
  if (!packs::whole<T>(n, rows, x)) return false;
  const Send<T> f{{rows, routing, peers}, x.as<T>(), as_or_null<float>(weights), routing.row_of_slot.columns()};
  packs::start_rows(stream, x.rows(), n / lanes<T>, f);
  return true;
}

template <class T, class Rows>
void start_sum(Stream& stream, const Tensor& y, const Rows& in, const SlotSum& terms, const Routing& routing) {
  const SumSlots<T, Rows> f{as_or_null<T>(y),
                            as_or_null<T>(terms.kept),
                            in,
                            routing.row_of_slot.as<std::int32_t>(),
                            as_or_null<float>(terms.weights),
                            as_or_null<T>(terms.first),
                            as_or_null<T>(terms.last),
                            routing.row_of_slot.columns()};
  packs::start_rows(stream, routing.row_of_slot.rows(), in.columns / lanes<T>, f);
}

template <class T>
bool sum_as(Stream& stream, const Tensor& y, const Tensor& y_rows, const SlotSum& terms, const Routing& routing) {
  const std::int64_t n = y_rows.columns();
  for (const Tensor& one : {y, terms.first, terms.last, terms.kept})
    if (one && !packs::whole<T>(n, one)) return false;
  if (!packs::whole<T>(n, y_rows)) return false;
  if (terms.peers)
    start_sum<T>(stream, y, RowsAtPeers<const T>(y_rows, routing, *terms.peers), terms, routing);
  else
    start_sum<T>(stream, y, RowsHere<const T>{y_rows.as<T>(), n, routing.row_of_slot.as<std::int32_t>()}, terms,
                 routing);
  return true;
}

template <class T>
bool backward_as(Stream& stream, const Tensor& dy_rows, const Tensor& dweight, const Tensor& dy, const Tensor& y_rows,
                 const Routing& routing) {
  const std::int64_t n = dy.columns();
  if (!packs::whole<T>(n, dy, y_rows) || (dy_rows && !packs::whole<T>(n, dy_rows))) return false;
  const CombineBackward<T> f{as_or_null<T>(dy_rows), dweight.as<float>(), dy.as<T>(), y_rows.as<T>(),
                             routing.weight.as<float>(), routing.row_of_slot.as<std::int32_t>(), n,
                             routing.row_of_slot.columns()};
  packs::start_warps(stream, dy.rows(), f);
  return true;
}

}  // namespace

bool gather_rows(Stream& stream, const Tensor& x_rows, const Tensor& x, const Routing& routing) {
  if (x.type == DType::bf16) return gather_as<bf16>(stream, x_rows, x, routing);
  return x.type == DType::f32 && gather_as<float>(stream, x_rows, x, routing);
}

bool send_rows(Stream& stream, const Tensor& rows, const Tensor& x, const Tensor& weights, const Routing& routing,
               const PeerRows& peers) {
  if (x.type == DType::bf16) return send_as<bf16>(stream, rows, x, weights, routing, peers);
  return x.type == DType::f32 && send_as<float>(stream, rows, x, weights, routing, peers);
}

bool sum_slots(Stream& stream, const Tensor& y, const Tensor& y_rows, const SlotSum& terms, const Routing& routing) {
  if (y_rows.type == DType::bf16) return sum_as<bf16>(stream, y, y_rows, terms, routing);
  return y_rows.type == DType::f32 && sum_as<float>(stream, y, y_rows, terms, routing);
}

bool combine_backward(Stream& stream, const Tensor& dy_rows, const Tensor& dweight, const Tensor& dy,
                      const Tensor& y_rows, const Routing& routing) {
  if (dy.type == DType::bf16) return backward_as<bf16>(stream, dy_rows, dweight, dy, y_rows, routing);
  return dy.type == DType::f32 && backward_as<float>(stream, dy_rows, dweight, dy, y_rows, routing);
}

}  // namespace tessera::moe
