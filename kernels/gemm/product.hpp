#pragma once
#include <compare>
#include <cstdint>
#include <optional>

#include "kernels/gemm/operand.hpp"

namespace tessera::gemm {

/// Which of a linear layer's three products; how its factors lie follows.
enum class Form : std::uint8_t {
  forward,          ///< c = a b^T: y = x w^T
  input_gradient,   ///< c = a b: dx = dy w
  weight_gradient,  ///< c = a^T b: dw = dy^T x
};

/// How a factor [m,k] or [k,n] lies in memory: row-major, or its transpose does.
enum class Stored : std::uint8_t { plain, transposed };

/// What becomes of a sum before it is rounded and stored.
enum class Epilogue : std::uint8_t {
  none,
  bias,       ///< + bias [n]
  gelu,       ///< aux = the sum, c = gelu(sum)
  bias_gelu,  ///< aux = sum + bias, c = gelu of that
  dgelu,      ///< c = sum gelu'(aux)
  rounded,    ///< rounded to `type` before it is added to beta c; aux is room for one such product, which back ends may
              ///< use. Of experts' weight gradients alone
};

/// Everything that decides how a product is computed: c [m,n] = epilogue(beta c + alpha (product of a and b)),
/// row-major, summed over k in fp32 (fp64 for fp64; fp32 stays fp32); the sum times alpha is rounded to fp32, what
/// follows is rounded once. The key of library plans. `lda` is the
/// distance, in elements, from one row of `a` to the next as it lies in memory: of a itself if plain, of its transpose
/// otherwise; ldb and ldc likewise.
struct Product {
  DType type = DType::f32;  ///< of factors that are values, of bias and aux
  DType sum = DType::f32;   ///< of c
  Form form = Form::input_gradient;
  std::optional<FormatId> a = {}, b = {};  ///< formats of factors that are codes
  Epilogue epilogue = Epilogue::none;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  float beta = 0;
  bool scaled = false;  ///< whether sums are multiplied by an alpha that lies on the device
  /// 0: dense. Else that many share the rows, the summed ones of a weight gradient: each multiplies its own with its
  /// own b, or has its own c.
  std::int64_t experts = 0;

  auto operator<=>(const Product&) const = default;

  Stored stored_a() const { return form == Form::weight_gradient ? Stored::transposed : Stored::plain; }
  Stored stored_b() const { return form == Form::forward ? Stored::transposed : Stored::plain; }
  bool biased() const { return epilogue == Epilogue::bias || epilogue == Epilogue::bias_gelu; }
};

/// Where the factors and results of one product lie.
struct Places {
  Operand a = {};
  ExpertOperands b = {};
  ExpertGradients c = {};  ///< whose beta is the product's
  Tensor bias = {}, aux = {};
  Tensor alpha = {};  ///< f32: of a scaled product its alpha, one an expert where each has its own b; then 0 and 1
  Tensor offsets = {};  ///< i32 [experts + 1] on the device: rows of expert e are [offsets[e], offsets[e+1])
};

}  // namespace tessera::gemm
