#include "core/step/self_check.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "core/model/layers/copies.hpp"
#include "kernels/digest/digest.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera {
namespace {

using gemm::Form;
using gemm::Product;

// Multiples of 32, of no power of two above; two and three tiles of 128 rows, and a part.
constexpr std::int64_t m = 288, n = 160, k = 416;

std::uint64_t drawn(std::int64_t a, std::int64_t b, std::uint64_t salt) {
  return mix64(mix64(static_cast<std::uint64_t>(a) * 0x9E3779B97F4A7C15u + salt) ^ static_cast<std::uint64_t>(b));
}

/// Values whose magnitudes change from block to block, and from row to row.
std::vector<bf16> values_of(formats::Matrix shape, std::uint64_t salt) {
  std::vector<bf16> values;
  for (std::int64_t r = 0; r < shape.rows; ++r)
    for (std::int64_t c = 0; c < shape.columns; ++c) {
      const auto exponent = static_cast<int>(drawn(r / 16, c / 16, salt + 1) % 6 + drawn(r, -1, salt + 2) % 3 +
                                             drawn(-1, c, salt + 3) % 3);
      const double uniform = static_cast<double>(drawn(r, c, salt) >> 40) * 0x1p-23 - 1;
      values.push_back(bf16(static_cast<float>(std::ldexp(uniform, exponent - 5))));
    }
  return values;
}

/// One factor as the run's products take it: both copies, on the device.
class Factor {
 public:
  Factor(Device& device, FormatId format, Side side, formats::Matrix shape, std::uint64_t salt)
      : device_(device), format_(format), side_(side) {
    matrix_.matrix = shape;
    matrix_.values = device.allocate(Category::batch, DType::bf16, {shape.rows, shape.columns});
    const std::vector<bf16> values = values_of(shape, salt);
    device.upload(device.compute(), matrix_.values, values.data());
    matrix_.rowwise = place(Side::rowwise);
    matrix_.columnwise = place(Side::columnwise);
    if (traits_of(format).columnwise == formats::Columnwise::shared) matrix_.columnwise.data = matrix_.rowwise.data;
    quantize_one(device.compute(), format, matrix_, Purpose::weight);
  }

  Operand operand() const {
    const Copy& copy = side_ == Side::rowwise ? matrix_.rowwise : matrix_.columnwise;
    return {copy.data, Codes{format_, side_, copy.scales, copy.amax}};
  }

  /// Magnitudes of the factors of products, the tensor's scale included: entry (i, j), j along the sum.
  std::vector<double> magnitudes() {
    decode_one(device_.compute(), format_, matrix_, side_);
    const auto [rows, columns] = std::pair(matrix_.matrix.rows, matrix_.matrix.columns);
    std::vector<bf16> values(static_cast<std::size_t>(rows * columns));
    device_.download(device_.compute(), values.data(), matrix_.values);
    const double scale = traits_of(format_).leaves_alpha ? step() : 1;
    std::vector<double> all(values.size());
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t at = side_ == Side::rowwise ? r * columns + c : c * rows + r;
        all[static_cast<std::size_t>(at)] =
            std::abs(static_cast<float>(values[static_cast<std::size_t>(r * columns + c)])) * scale;
      }
    return all;
  }

 private:
  Copy place(Side side) {
    return place_copy(format_, side, matrix_.matrix, 1, [&](DType type, const Shape& shape) {
      return device_.allocate(Category::batch, type, shape);
    });
  }
  double step() {
    float amax = 0;
    device_.download(device_.compute(), &amax,
                     (side_ == Side::rowwise ? matrix_.rowwise : matrix_.columnwise).amax);
    return formats::tensor_step(formats::Registry{}, format_, amax);
  }

  Device& device_;
  FormatId format_;
  Side side_;
  QuantizedMatrix matrix_;
};

/// The factors of one small product of a kind, and what its sums allow.
class Trial {
 public:
  Trial(Device& device, const gemm::Kind& kind)
      : device_(device),
        a_(device, kind.a, kind.form == Form::weight_gradient ? Side::columnwise : Side::rowwise,
           kind.form == Form::weight_gradient ? formats::Matrix{k, m} : formats::Matrix{m, k}, 1),
        b_(device, kind.b, kind.form == Form::forward ? Side::rowwise : Side::columnwise,
           kind.form == Form::forward ? formats::Matrix{n, k} : formats::Matrix{k, n}, 2),
        bias_(device.allocate(Category::batch, DType::bf16, {n})),
        terms_(static_cast<std::size_t>(m * n)) {
    const std::vector<bf16> bias = values_of({1, n}, 3);
    device.upload(device.compute(), bias_, bias.data());
    operand_a_ = a_.operand();
    operand_b_ = b_.operand();
    const std::vector<double> a = a_.magnitudes(), b = b_.magnitudes();
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double& sum = terms_[static_cast<std::size_t>(i * n + j)];
        for (std::int64_t l = 0; l < k; ++l)
          sum += a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(j * k + l)];
      }
  }

  /// Largest distance of the two routes' results, in parts of the bound; NaN if one is no number. `like`: a product of
  /// the run, of any shape. Empty if no single native product has its epilogue.
  std::optional<double> apart(const Product& like) {
    const std::optional<std::vector<float>> native = result(gemm::Route::native, like);
    if (!native) return std::nullopt;
    const std::vector<float> decoded = *result(gemm::Route::decoded, like);
    const double digits = like.sum == DType::bf16 ? 0x1p-7 : 0x1p-22;
    double most = 0;
    for (std::size_t i = 0; i < terms_.size(); ++i) {
      const double x = (*native)[i], y = decoded[i];
      const double bound = 0x1p-11 * terms_[i] + digits * std::max(std::abs(x), std::abs(y)) + 0x1p-126;
      const double parts = std::abs(x - y) / bound;
      if (!(parts <= most)) most = parts;
      if (std::isnan(most)) return most;
    }
    return most;
  }

 private:
  std::optional<std::vector<float>> result(gemm::Route route, const Product& like) {
    Product p = like;
    p.m = m, p.n = n, p.k = k;
    p.lda = operand_a_.columns(), p.ldb = operand_b_.columns(), p.ldc = n;
    const Tensor c = device_.allocate(Category::batch, p.sum, {m, n});
    std::vector<bf16> before = values_of({m, n}, 4);
    if (p.sum == DType::bf16) device_.upload(device_.compute(), c, before.data());
    const std::vector<float> wide(before.begin(), before.end());
    if (p.sum == DType::f32) device_.upload(device_.compute(), c, wide.data());
    const Gradient sum{c, p.beta};
    gemm::Addresses at{.a = operand_a_, .b = {&operand_b_, 1}, .c = {&sum, 1}};
    if (p.biased()) at.bias = bias_;
    if (!gemm::multiply_by(device_.compute(), route, p, at)) return std::nullopt;
    std::vector<float> values(before.size());
    if (p.sum == DType::f32) {
      device_.download(device_.compute(), values.data(), c);
    } else {
      device_.download(device_.compute(), before.data(), c);
      std::copy(before.begin(), before.end(), values.begin());
    }
    return values;
  }

  Device& device_;
  Factor a_, b_;
  Operand operand_a_, operand_b_;
  Tensor bias_;
  std::vector<double> terms_;  ///< of each result: the sum of its terms' magnitudes
};

/// What of a product the check depends on: all but the sizes.
Product without_sizes(Product p) {
  p.m = p.n = p.k = p.lda = p.ldb = p.ldc = 0;
  return p;
}

CheckedKind checked(Device& device, const gemm::Kind& kind, const std::set<Product>& products) {
  CheckedKind found;
  try {
    Trial trial(device, kind);
    for (const Product& like : products) {
      const std::optional<double> apart = trial.apart(like);
      if (apart && !(*apart <= found.apart)) found.apart = *apart;
    }
    if (!(found.apart <= 1)) found.fault = "its results are not those of the decoded factors";
  } catch (const Error& error) {
    found.fault = error.what();
  }
  return found;
}

}  // namespace

CheckedKinds check_units(Device& device, const gemm::Routes& routes) {
  std::map<gemm::Kind, std::set<Product>> kinds;
  for (const auto& [product, route] : routes.of)
    if (route == gemm::Route::native && gemm::standing_of(gemm::kind_of(product)) == gemm::Standing::claimed)
      kinds[gemm::kind_of(product)].insert(without_sizes(product));
  CheckedKinds all;
  for (const auto& [kind, products] : kinds) all.emplace(kind, checked(device, kind, products));
  return all;
}

}  // namespace tessera
