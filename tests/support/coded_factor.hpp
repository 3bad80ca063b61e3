#pragma once
#include <vector>

#include "kernels/gemm/operand.hpp"
#include "tests/support/quantized_case.hpp"

/// Factors of products of codes, with the values that they stand for.
namespace tessera::test {

using formats::Matrix;

/// The formats of a recipe: of weights, of values, and of their gradients.
template <class W, class X, class G = X>
struct Formats {
  using Weight = W;
  using Value = X;
  using Slope = G;
};
using FormatsOfBlocks = Formats<formats::Fp8Block, formats::Fp8BlockOneD>;
using FormatsOfTensors = Formats<formats::Fp8Tensor, formats::Fp8Tensor, formats::Fp8TensorE5m2>;
/// A matrix, or several members, and both copies.
template <class F>
struct Factor {
  Matrix matrix;
  std::int64_t members;
  GuardedCopy<F> row, column;
  QuantizedMatrix item;

  Factor(Device& device, Matrix m, std::int64_t count, std::uint64_t seed)
      : matrix(m), members(count), row(device, Side::rowwise, m, count), column(device, Side::columnwise, m, count) {
    item.matrix = m;
    item.members = count;
    item.values = on_device(device, {count * m.elements()}, members_of(m.elements(), count, seed));
    item.rowwise = row.copy();
    item.columnwise = column.copy();
    if (F::columnwise == formats::Columnwise::shared) item.columnwise.data = item.rowwise.data;
    quantize_one(device.compute(), formats::id_of<F>, item, Purpose::weight);
  }
  /// Values of different magnitudes in each member, so that using another one's scale is found.
  static std::vector<bf16> members_of(std::int64_t elements, std::int64_t count, std::uint64_t seed) {
    std::vector<bf16> all;
    for (std::int64_t e = 0; e < count; ++e) {
      const double most = static_cast<double>(seed) + static_cast<double>(e);
      const std::uint64_t own = seed + 10 * static_cast<std::uint64_t>(e);
      const std::vector<bf16> one = uniform<bf16>(elements, own, -most, most);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  Operand operand(Side side) const {
    const Copy& copy = side == Side::rowwise ? item.rowwise : item.columnwise;
    Codes codes{formats::id_of<F>, side, {}, copy.amax};
    if (F::scaled) codes.scales = {copy.scales.data, copy.scales.type, formats::scale_shape<F>(side, matrix)};
    return {{copy.data.data, copy.data.type, formats::data_shape<F>(side, matrix)}, codes, members, matrix.elements()};
  }
  /// The decoded factor as products read it, without the tensor's scale.
  Operand values(Device& device, Side side) const {
    QuantizedMatrix decoded = item;
    decoded.values = poisoned<bf16>(device, {members * matrix.rows, matrix.columns});
    decode_one(device.compute(), formats::id_of<F>, decoded, side);
    return {decoded.values.flat(0, matrix.elements()).view({matrix.rows, matrix.columns}), members, matrix.elements()};
  }
  float amax(Device& device, Side side, std::int64_t e = 0) const {
    const Tensor& t = side == Side::rowwise ? item.rowwise.amax : item.columnwise.amax;
    return t ? on_host<float>(device, t)[static_cast<std::size_t>(e)] : 2688.0f;
  }
};

/// Compares relatively to the largest wanted number.
inline ::testing::AssertionResult close(const std::vector<double>& actual, const std::vector<double>& wanted,
                                 double tolerance) {
  double most = 0;
  for (double v : wanted) most = std::max(most, std::abs(v));
  std::vector<double> a = actual, e = wanted;
  for (double& v : a) v /= most;
  for (double& v : e) v /= most;
  return near(a, e, tolerance);
}

}  // namespace tessera::test
