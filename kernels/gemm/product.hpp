#pragma once
#include <compare>
#include <cstdint>
#include <optional>

#include "kernels/gemm/operand.hpp"

namespace tessera::gemm {

/// Which of a linear layer's three products. The memory order of the factors follows from it.
enum class Form : std::uint8_t {
  forward,          ///< c = a b^T: y = x w^T
  input_gradient,   ///< c = a b: dx = dy w
  weight_gradient,  ///< c = a^T b: dw = dy^T x
};

/// Memory order of a factor [m,k] or [k,n]: row-major, or row-major as its transpose.
enum class Stored : std::uint8_t { plain, transposed };

/// What is computed from a sum before it is rounded and stored.
enum class Epilogue : std::uint8_t {
  none,
  bias,       ///< + bias [n]
  gelu,       ///< aux = the sum, c = gelu(sum)
  bias_gelu,  ///< aux = sum + bias, c = gelu of that
  dgelu,      ///< c = sum gelu'(aux)
  rounded,    ///< the sum is rounded to `type` before it is added to beta c; aux: scratch for one such product, which
              ///< back ends may use. Only for experts' weight gradients
};

/// Everything that decides how a product is computed: c [m,n] = epilogue(beta c + alpha (product of a and b)),
/// row-major, summed over k in fp32 (fp64 for fp64; never TF32). The sum times alpha is rounded to fp32; the result of
/// what follows is rounded once. The key of library plans. `lda` is the distance in elements between rows of `a` in
/// memory (of its transpose, if it is stored transposed); ldb and ldc likewise.
struct Product {
  DType type = DType::f32;  ///< type of factors that are values, of bias and of aux
  DType sum = DType::f32;   ///< type of c
  Form form = Form::input_gradient;
  std::optional<FormatId> a = {}, b = {};  ///< formats of factors that are codes
  Epilogue epilogue = Epilogue::none;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  float beta = 0;
  bool scaled = false;  ///< whether sums are multiplied by an alpha on the device
  /// Number of experts of a grouped product; 0: dense. Experts divide the rows of a: each multiplies its rows by its
  /// own b. In a weight gradient they divide the summed rows of a and b, and each has its own c.
  std::int64_t experts = 0;

  auto operator<=>(const Product&) const = default;

  Stored stored_a() const { return form == Form::weight_gradient ? Stored::transposed : Stored::plain; }
  Stored stored_b() const { return form == Form::forward ? Stored::transposed : Stored::plain; }
  bool biased() const { return epilogue == Epilogue::bias || epilogue == Epilogue::bias_gelu; }
};

/// Addresses of the factors and results of one product.
struct Addresses {
  Operand a = {};
  ExpertOperands b = {};
  ExpertGradients c = {};  ///< their beta equals Product::beta
  Tensor bias = {}, aux = {};
  Tensor alpha = {};  ///< f32, scaled products: alpha (one for each b of an expert), then the numbers 0 and 1
  Tensor offsets = {};  ///< i32 [experts + 1] on the device: rows of expert e are [offsets[e], offsets[e+1])
};

}  // namespace tessera::gemm
