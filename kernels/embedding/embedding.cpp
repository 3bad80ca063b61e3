#include "kernels/base/launch.hpp"
#include "kernels/embedding/back.hpp"
#include "kernels/sort/sort.hpp"

namespace tessera {
namespace {

template <class T>
void forward(Stream& stream, const Tensor& y, const Tensor& ids, const EmbeddingTables& tables, const Tensor& where) {
  const Tensor &tokens = tables.tokens, &positions = tables.positions;
  using A = Accumulator<T>;
  const std::int64_t n = y.columns(), length = positions ? positions.rows() : 1;
  T* const out = y.as<T>();
  const std::int32_t* const id = ids.as<std::int32_t>();
  const T *const table = tokens.as<T>(), *const places = positions ? positions.as<T>() : nullptr;
  const std::int32_t* const at = where ? where.as<std::int32_t>() : nullptr;
  launch_rows(stream, "embedding_forward", y.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t m) {
    const T* const token = table + id[m] * n;
    T* const to = out + m * n;
    if (places == nullptr) {
      row.each(n, [=](std::int64_t j) { to[j] = token[j]; });
    } else {
      const T* const place = places + (at != nullptr ? at[m] : m % length) * n;
      row.each(n, [=](std::int64_t j) { to[j] = T(A(token[j]) + A(place[j])); });
    }
  });
}

template <class T>
void token_gradient(Stream& stream, const Gradient& dtokens, const Tensor& order, const Tensor& offsets,
                    const Tensor& dy) {
  using A = Accumulator<T>;
  const std::int64_t n = dy.columns();
  A* const out = dtokens.sum.as<A>();
  const A beta = A(dtokens.beta);
  const T* const up = dy.as<T>();
  const std::int32_t *const position = order.as<std::int32_t>(), *const begin = offsets.as<std::int32_t>();
  launch_rows(stream, "embedding_token_gradient", dtokens.sum.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t v) {
    if (beta == A(1) && begin[v] == begin[v + 1]) return;
    A* const d = out + v * n;
    row.each(n, [=](std::int64_t j) { d[j] = beta == A(0) ? A(0) : beta * d[j]; });
    for (std::int32_t i = begin[v]; i < begin[v + 1]; ++i) {
      const T* const g = up + position[i] * n;
      row.each(n, [=](std::int64_t j) { d[j] += A(g[j]); });
    }
  });
}

template <class T> void position_gradient(Stream& stream, const Gradient& dpositions, const Tensor& dy) {
  using A = Accumulator<T>;
  const std::int64_t n = dy.columns(), rows = dy.rows(), length = dpositions.sum.rows();
  A* const out = dpositions.sum.as<A>();
  const A beta = A(dpositions.beta);
  const T* const up = dy.as<T>();
  launch_rows(stream, "embedding_position_gradient", length, KOKKOS_LAMBDA(const Row& row, std::int64_t t) {
    A* const d = out + t * n;
    row.each(n, [=](std::int64_t j) { d[j] = beta == A(0) ? A(0) : beta * d[j]; });
    for (std::int64_t m = t; m < rows; m += length) {
      const T* const g = up + m * n;
      row.each(n, [=](std::int64_t j) { d[j] += A(g[j]); });
    }
  });
}

}  // namespace

void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const EmbeddingTables& tables,
                       const Tensor& at) {
  const Tensor &tokens = tables.tokens, &positions = tables.positions;
  require(ids.elements() == y.rows() && tokens.columns() == y.columns(), "embedding_forward", "ids [M], tokens [V,C]");
  require(!positions || (positions.columns() == y.columns() && positions.rows() > 0), "embedding_forward",
          "positions are [T,C]");
  require(!at || (positions && at.elements() == y.rows()), "embedding_forward", "positions of tokens are [M]");
  if (!at && !stream.dry() && embedding::forward(stream, y, ids, tokens, positions)) return;
  dispatch_real(y.type, "embedding_forward", [&]<class T>() { forward<T>(stream, y, ids, tables, at); });
}

void embedding_token_gradient(Stream& stream, Arena& arena, const Gradient& dtokens, const Tensor& ids,
                              const Tensor& dy) {
  require(ids.elements() == dy.rows() && dtokens.sum.columns() == dy.columns(), "embedding_token_gradient",
          "ids [M], dy [M,C], dtokens [V,C]");
  const Arena::Frame frame(arena);
  const Tensor order = arena.temp(DType::i32, Shape{ids.elements()});
  const Tensor offsets = arena.temp(DType::i32, Shape{dtokens.sum.rows() + 1});
  sort_by_key(stream, arena, order, offsets, ids);
  if (!stream.dry() && embedding::token_gradient(stream, dtokens, order, offsets, dy)) return;
  dispatch_real(dy.type, "embedding_token_gradient", [&]<class T>() {
    token_gradient<T>(stream, dtokens, order, offsets, dy);
  });
}

void embedding_position_gradient(Stream& stream, const Gradient& dpositions, const Tensor& dy) {
  require(dpositions.sum.columns() == dy.columns() && dpositions.sum.rows() > 0, "embedding_position_gradient",
          "dpositions are [T,C], dy is [M,C]");
  if (!stream.dry() && embedding::position_gradient(stream, dpositions, dy)) return;
  dispatch_real(dy.type, "embedding_position_gradient", [&]<class T>() {
    position_gradient<T>(stream, dpositions, dy);
  });
}

}  // namespace tessera
