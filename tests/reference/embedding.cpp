#include "tests/reference/embedding.hpp"

namespace tessera::reference {

std::vector<double> embedding_forward(std::span<const std::int32_t> ids, std::span<const double> tokens,
                                      std::span<const double> positions, std::size_t columns) {
  std::vector<double> y(ids.size() * columns);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = tokens[static_cast<std::size_t>(ids[i / columns]) * columns + i % columns];
    if (!positions.empty()) y[i] += positions[i % positions.size()];
  }
  return y;
}

template <class T>
void embedding_token_gradient(std::span<Accumulator<T>> dtokens, float beta, std::span<const std::int32_t> ids,
                              std::span<const T> dy, std::size_t columns) {
  for (auto& d : dtokens) d = beta == 0 ? 0 : beta * d;
  for (std::size_t i = 0; i < dy.size(); ++i)
    dtokens[static_cast<std::size_t>(ids[i / columns]) * columns + i % columns] += Accumulator<T>(dy[i]);
}

template <class T>
void embedding_position_gradient(std::span<Accumulator<T>> dpositions, float beta, std::span<const T> dy) {
  for (auto& d : dpositions) d = beta == 0 ? 0 : beta * d;
  for (std::size_t i = 0; i < dy.size(); ++i) dpositions[i % dpositions.size()] += Accumulator<T>(dy[i]);
}

#define INSTANTIATE(T)                                                                                             \
  template void embedding_token_gradient<T>(std::span<Accumulator<T>>, float, std::span<const std::int32_t>,       \
                                            std::span<const T>, std::size_t);                                      \
  template void embedding_position_gradient<T>(std::span<Accumulator<T>>, float, std::span<const T>)
INSTANTIATE(double);
INSTANTIATE(float);
INSTANTIATE(bf16);

}  // namespace tessera::reference
