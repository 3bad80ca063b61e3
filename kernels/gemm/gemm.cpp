#include "kernels/gemm/gemm.hpp"

#include "kernels/activation/activation.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/formats/registry.hpp"
#include "kernels/gemm/back.hpp"
#include "kernels/gemm/decoded.hpp"
#include "kernels/gemm/native.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera {
namespace {

using gemm::Epilogue;
using gemm::Form;
using gemm::Addresses;
using gemm::Product;

void check_real(const Tensor& t, const char* kernel) {
  require(t.type == DType::f64 || t.type == DType::f32 || t.type == DType::bf16, kernel, "takes f64, f32 or bf16");
  require(t.shape.rank() >= 1 && t.columns() > 0, kernel, "a matrix has columns");
}

constexpr DType sum_type(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

// A product of factors whose rows follow one another without gaps.
Product described(const char* kernel, Form form, const Operand& a, const Operand& b, DType sum, float beta = 0) {
  require(a.data.shape.rank() > 0 && b.data.shape.rank() > 0, kernel, "a factor is a matrix");
  Product p{.type = a.codes || b.codes ? DType::bf16 : a.data.type, .sum = sum, .form = form};
  if (a.codes) p.a = a.codes->format;
  if (b.codes) p.b = b.codes->format;
  p.m = form == Form::weight_gradient ? a.columns() : a.rows();
  p.n = form == Form::forward ? b.rows() : b.columns();
  p.k = form == Form::weight_gradient ? a.rows() : a.columns();
  p.lda = a.columns();
  p.ldb = b.columns();
  p.ldc = p.n;
  p.beta = beta;
  return p;
}

void check_factor(const Operand& factor, const Product& p, std::int64_t rows, std::int64_t columns,
                  const char* kernel) {
  if (!factor.codes) {
    check_real(factor.data, kernel);
    require(factor.data.type == p.type, kernel, "operands must be of one type");
  }
  require(factor.rows() == rows && factor.columns() == columns, kernel, "operands must fit one another");
}

void check_result(const Gradient& c, const Product& p, const char* kernel) {
  if (p.form == Form::weight_gradient) {
    require(c.sum.elements() == p.m * p.n, kernel, "the gradient does not fit the operands");
    const bool rounds = c.sum.type == p.type && c.beta == 0 && p.experts == 0;
    require(c.sum.type == sum_type(p.type) || rounds, kernel, "a gradient is summed in fp32 (fp64 for fp64)");
    require(c.beta == p.beta, kernel, "experts' gradients must have one beta");
    return;
  }
  check_real(c.sum, kernel);
  require(c.sum.type == p.type, kernel, "operands must be of one type");
  require(c.sum.rows() == p.m && c.sum.columns() == p.n, kernel, "the result does not fit the operands");
}

void check_epilogue(const Product& p, const Addresses& at, const char* kernel) {
  require(!p.biased() || (at.bias.type == p.type && at.bias.elements() == p.n), kernel, "bias is [out]");
  if (p.epilogue == Epilogue::none || p.epilogue == Epilogue::bias) return;
  check_real(at.aux, kernel);
  require(at.aux.type == p.type && at.aux.rows() == p.m && at.aux.columns() == p.n, kernel,
          "what goes beside the result must be of its shape and the operands' type");
}

// The number of experts, on which `offsets` and the list of weights or gradients must agree.
template <class T>
std::int64_t experts_of(const Tensor& offsets, const Members<T>& members, const char* kernel) {
  require(members.list && members.count > 0, kernel, "there must be a weight, or its gradient");
  require(offsets.type == DType::i32 && offsets.elements() >= 2, kernel, "offsets are i32, one more than experts");
  const std::int64_t experts = offsets.elements() - 1;
  require((members.count == 1 && members.list[0].members == experts) || members.count == experts, kernel,
          "one grouped weight, or one an expert");
  return experts;
}

// Checks which copy of each factor a form multiplies: the one whose blocks run along the summed dimension.
void check_codes(const Product& p, const Addresses& at, const char* kernel) {
  const Side of_a = p.form == Form::weight_gradient ? Side::columnwise : Side::rowwise;
  const Side of_b = p.form == Form::forward ? Side::rowwise : Side::columnwise;
  const auto fits = [&](const Operand& factor, std::optional<FormatId> format, Side side) {
    const bool same = factor.codes ? format == factor.codes->format && factor.codes->side == side : !format;
    require(same, kernel, "codes of a factor are of one format, and of the copy whose blocks run along the sum");
  };
  fits(at.a, p.a, of_a);
  for (int e = 0; e < at.b.count; ++e) fits(at.b.list[e], p.b, of_b);
}

void check(const Product& p, const Addresses& at, const char* kernel) {
  check_codes(p, at, kernel);
  const bool summed_over_rows = p.form == Form::weight_gradient;
  require(at.b.count <= most_discrete_experts() && at.c.count <= most_discrete_experts(), kernel,
          "too many discrete experts: use weights: single");
  check_factor(at.a, p, summed_over_rows ? p.k : p.m, summed_over_rows ? p.m : p.k, kernel);
  for (int e = 0; e < at.b.count; ++e)
    check_factor(at.b.list[e], p, p.form == Form::forward ? p.n : p.k, p.form == Form::forward ? p.k : p.n, kernel);
  for (int e = 0; e < at.c.count; ++e) check_result(at.c.list[e], p, kernel);
  check_epilogue(p, at, kernel);
}

// Counts the FLOPs: two operations a multiplication, whatever the form.
void count(Stream& stream, const Product& p) {
  stream.count_launch();
  stream.count_flops(2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k));
}

// Whether a factor's tensor scale is left to an alpha: of codes as they are, or of their decoded values.
bool leaves_alpha(const std::optional<FormatId>& factor, gemm::Route route) {
  if (!factor) return false;
  const FormatTraits format = traits_of(*factor);
  return route == gemm::Route::native ? format.tensor_amax : format.leaves_alpha;
}

// Multiplies if the back end has the product's epilogue; returns false, with nothing done, otherwise.
bool multiply(Stream& stream, const Product& p, const Addresses& at, const char* kernel) {
  check(p, at, kernel);
  if (p.m > 0 && (p.k > 0 || p.experts > 0)) {
    if (!gemm::multiply_by(stream, gemm::route_of(p), p, at)) return false;
  } else if (p.form == Form::weight_gradient) {
    gemm::scale(stream, at.c.list[0]);
  }
  count(stream, p);
  return true;
}

// y = the product of rows x, sorted by expert, and each expert's weight.
void rows_times_experts(Stream& stream, const char* kernel, Form form, const Tensor& y, const Operand& x,
                        const ExpertOperands& w, const Tensor& offsets) {
  const std::int64_t experts = experts_of(offsets, w, kernel);
  Product p = described(kernel, form, x, w[0], y.type);
  p.experts = experts;
  const Gradient c{y};
  multiply(stream, p, {.a = x, .b = w, .c = {&c, 1}, .offsets = offsets}, kernel);
}

// sum = beta sum + x, where x(i) is of the accumulator's type; beta 0 never reads the sum.
template <class A, class X>
void add_scaled(Stream& stream, const char* name, const Gradient& g, std::int64_t n, const X& x) {
  const auto sum = view_of<A>(g.sum);
  const auto beta = static_cast<Accumulator<A>>(g.beta);
  constexpr std::int64_t block = 1024;
  launch_rows(
      stream, name, ceil_div(n, block), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        const std::int64_t begin = r * block, size = n - begin < block ? n - begin : block;
        if (beta == 0)
          row.each(size, [&](std::int64_t j) { sum(begin + j) = x(begin + j); });
        else
          row.each(size,
                   [&](std::int64_t j) { sum(begin + j) = static_cast<A>(beta * sum(begin + j) + x(begin + j)); });
      });
}

template <class T>
struct Contribution {
  Kokkos::View<T*, Memory, Kokkos::MemoryTraits<Kokkos::Unmanaged>> x;
  KOKKOS_FUNCTION Accumulator<T> operator()(std::int64_t i) const { return static_cast<Accumulator<T>>(x(i)); }
};
template <class T>
struct Nothing {
  KOKKOS_FUNCTION T operator()(std::int64_t) const { return T(0); }
};

}  // namespace

void linear_forward(Stream& stream, const Tensor& y, const Operand& x, const Operand& w, const Tensor& bias) {
  constexpr const char* kernel = "linear_forward";
  Product p = described(kernel, Form::forward, x, w, y.type);
  if (bias.shape.rank() > 0) p.epilogue = Epilogue::bias;
  const Gradient c{y};
  multiply(stream, p, {.a = x, .b = {&w, 1}, .c = {&c, 1}, .bias = bias}, kernel);
}

void linear_gelu_forward(Stream& stream, const Tensor& y, const Tensor& pre, const Operand& x, const Operand& w,
                         const Tensor& bias) {
  constexpr const char* kernel = "linear_gelu_forward";
  Product p = described(kernel, Form::forward, x, w, y.type);
  p.epilogue = bias.shape.rank() > 0 ? Epilogue::bias_gelu : Epilogue::gelu;
  const Gradient c{y};
  if (multiply(stream, p, {.a = x, .b = {&w, 1}, .c = {&c, 1}, .bias = bias, .aux = pre}, kernel)) return;
  linear_forward(stream, pre, x, w, bias);
  gelu_forward(stream, y, pre);
}

void linear_input_gradient(Stream& stream, const Tensor& dx, const Operand& dy, const Operand& w) {
  constexpr const char* kernel = "linear_input_gradient";
  const Gradient c{dx};
  const Product p = described(kernel, Form::input_gradient, dy, w, dx.type);
  multiply(stream, p, {.a = dy, .b = {&w, 1}, .c = {&c, 1}}, kernel);
}

void linear_gelu_input_gradient(Stream& stream, const Tensor& dpre, const Operand& dy, const Operand& w,
                                const Tensor& pre) {
  constexpr const char* kernel = "linear_gelu_input_gradient";
  Product p = described(kernel, Form::input_gradient, dy, w, dpre.type);
  p.epilogue = Epilogue::dgelu;
  const Gradient c{dpre};
  if (multiply(stream, p, {.a = dy, .b = {&w, 1}, .c = {&c, 1}, .aux = pre}, kernel)) return;
  linear_input_gradient(stream, dpre, dy, w);
  gelu_backward(stream, dpre, dpre, pre);
}

void linear_weight_gradient(Stream& stream, const Gradient& dw, const Operand& dy, const Operand& x) {
  constexpr const char* kernel = "linear_weight_gradient";
  const Product p = described(kernel, Form::weight_gradient, dy, x, dw.sum.type, dw.beta);
  multiply(stream, p, {.a = dy, .b = {&x, 1}, .c = {&dw, 1}}, kernel);
}

void bias_gradient(Stream& stream, const Gradient& db, const Tensor& dy) {
  constexpr const char* kernel = "bias_gradient";
  check_real(dy, kernel);
  require(db.sum.type == sum_type(dy.type) && db.sum.elements() == dy.columns(), kernel,
          "db is [out] in fp32 (fp64 for fp64)");
  if (dy.rows() == 0) return gemm::scale(stream, db);
  gemm::bias_gradient(stream, db, dy);
}

void accumulate(Stream& stream, const Gradient& sum, const Tensor& contribution) {
  constexpr const char* kernel = "accumulate";
  require(sum.sum.type == sum_type(contribution.type), kernel, "a gradient is summed in fp32 (fp64 for fp64)");
  require(sum.sum.elements() == contribution.elements(), kernel, "the contribution has the shape of one member");
  dispatch_real(contribution.type, kernel, [&]<class T>() {
    add_scaled<Accumulator<T>>(stream, kernel, sum, contribution.elements(), Contribution<T>{view_of<T>(contribution)});
  });
}

bool gemm::multiply_by(Stream& stream, Route route, Product p, Addresses at) {
  if (!p.a && !p.b) return multiply(stream, p, at);
  p.scaled = leaves_alpha(p.a, route) || leaves_alpha(p.b, route);
  if (stream.dry()) stream.library<Routes>().of.try_emplace(p, route);
  if (p.scaled && p.epilogue != Epilogue::none && p.epilogue != Epilogue::bias && p.epilogue != Epilogue::rounded)
    return false;
  if (route == Route::native) {
    require(!at.a.decoded() && !at.b.list[0].decoded(), "product of codes", "units that multiply codes take codes");
    if (p.scaled) at.alpha = alphas_of(stream, p, at, route);
    if (p.experts > 0) return native_library().multiply(stream, p, at);
    const Tiled tiled(stream, p, at);
    return native_library().multiply(stream, tiled.product(), tiled.places());
  }
  const Decoded values(stream, p, at);
  return multiply(stream, values.product(), values.places());
}

void gemm::scale(Stream& stream, const Gradient& sum) {
  if (sum.beta == 1) return;
  dispatch_real(sum.sum.type, "scale",
                [&]<class T>() { add_scaled<T>(stream, "scale", sum, sum.sum.elements(), Nothing<T>()); });
}

void expert_forward(Stream& stream, const Tensor& y, const Operand& x, const ExpertOperands& w, const Tensor& offsets) {
  rows_times_experts(stream, "expert_forward", Form::forward, y, x, w, offsets);
}

void expert_input_gradient(Stream& stream, const Tensor& dx, const Operand& dy, const ExpertOperands& w,
                           const Tensor& offsets) {
  rows_times_experts(stream, "expert_input_gradient", Form::input_gradient, dx, dy, w, offsets);
}

void expert_weight_gradient(Stream& stream, const ExpertGradients& dw, const Operand& dy, const Operand& x,
                            const Tensor& offsets, const Tensor& scratch) {
  constexpr const char* kernel = "expert_weight_gradient";
  const std::int64_t experts = experts_of(offsets, dw, kernel);
  Product p = described(kernel, Form::weight_gradient, dy, x, dw[0].sum.type, dw[0].beta);
  p.experts = experts;
  if (scratch.shape.rank() > 0) p.epilogue = Epilogue::rounded;
  multiply(stream, p, {.a = dy, .b = {&x, 1}, .c = dw, .aux = scratch, .offsets = offsets}, kernel);
}

}  // namespace tessera
