#include "kernels/gemm/gemm.hpp"

#include "kernels/activation/activation.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/gemm/back.hpp"

namespace tessera {
namespace {

// Elements of one piece of an elementwise kernel, and pieces between two calls of progress().
constexpr std::int64_t block = 1024, blocks_per_launch = 256;

void check_real(const Tensor& t, const char* kernel) {
  require(t.type == DType::f64 || t.type == DType::f32 || t.type == DType::bf16, kernel, "takes f64, f32 or bf16");
  require(t.shape.rank() >= 1 && t.columns() > 0, kernel, "a matrix has columns");
}

void check_member(const Operand& w, const Tensor& in, std::int64_t out_columns, std::int64_t in_columns,
                  const char* kernel) {
  check_real(in, kernel);
  require(w.data.type == in.type, kernel, "the weight must be of the operands' type");
  require(w.data.shape.rank() == 2, kernel, "a weight is [out, in]");
  require(w.data.shape[0] == out_columns && w.data.shape[1] == in_columns, kernel,
          "the weight does not fit the operands");
}

void check_rows(const Tensor& out, const Tensor& in, const char* kernel) {
  check_real(out, kernel);
  require(out.type == in.type, kernel, "operands must be of one type");
  require(out.rows() == in.rows(), kernel, "operands must have as many rows");
}

constexpr DType sum_type(DType type) { return type == DType::f64 ? DType::f64 : DType::f32; }

void check_gradient(const Gradient& g, const Tensor& in, std::int64_t elements, const char* kernel) {
  require(g.sum.elements() == elements, kernel, "the gradient does not fit the operands");
  const bool rounded = g.sum.type == in.type && g.beta == 0;
  require(g.sum.type == sum_type(in.type) || rounded, kernel, "a gradient is summed in fp32 (fp64 for fp64)");
}

// Two operations a multiplication, whatever the form.
void count(Stream& stream, std::int64_t rows, std::int64_t out, std::int64_t in) {
  stream.count_launch();
  stream.count_flops(2.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in));
}

// The number of experts that `offsets` and a list of weights or gradients agree on.
std::int64_t experts_of(const Tensor& offsets, int listed, std::int64_t members, const char* kernel) {
  require(offsets.type == DType::i32 && offsets.elements() >= 2, kernel, "offsets are i32, one more than experts");
  const std::int64_t experts = offsets.elements() - 1;
  require((listed == 1 && members == experts) || listed == experts, kernel, "one grouped weight, or one an expert");
  return experts;
}

void check_experts(const Tensor& out, const Tensor& in, const ExpertOperands& w, const Tensor& offsets, Shape weight,
                   const char* kernel) {
  require(w.weights && w.count > 0, kernel, "there must be a weight");
  const std::int64_t experts = experts_of(offsets, w.count, w.weights[0].members, kernel);
  for (std::int64_t e = 0; e < experts; ++e) check_member(w.expert(e), in, weight[0], weight[1], kernel);
  check_rows(out, in, kernel);
}

// sum = beta sum + x, where x(i) is of the accumulator's type; beta 0 never reads the sum.
template <class A, class X>
void add_scaled(Stream& stream, const char* name, const Gradient& g, std::int64_t n, const X& x) {
  const auto sum = view_of<A>(g.sum);
  const auto beta = static_cast<Accumulator<A>>(g.beta);
  const std::int64_t blocks = ceil_div(n, block);
  for (std::int64_t from = 0; from < blocks; from += blocks_per_launch) {
    const std::int64_t some = blocks - from < blocks_per_launch ? blocks - from : blocks_per_launch;
    launch_rows(
        stream, name, some, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
          const std::int64_t begin = (from + r) * block, size = n - begin < block ? n - begin : block;
          if (beta == 0)
            row.each(size, [&](std::int64_t j) { sum(begin + j) = x(begin + j); });
          else
            row.each(size,
                     [&](std::int64_t j) { sum(begin + j) = static_cast<A>(beta * sum(begin + j) + x(begin + j)); });
        });
  }
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

void linear_forward(Stream& stream, const Tensor& y, const Tensor& x, const Operand& w, const Tensor& bias) {
  linear_gelu_forward(stream, y, {}, x, w, bias);
}

void linear_gelu_forward(Stream& stream, const Tensor& y, const Tensor& pre, const Tensor& x, const Operand& w,
                         const Tensor& bias) {
  constexpr const char* kernel = "linear_forward";
  check_member(w, x, y.columns(), x.columns(), kernel);
  check_rows(y, x, kernel);
  if (pre.shape.rank() > 0) check_rows(pre, x, kernel);
  require(pre.shape.rank() == 0 || pre.columns() == y.columns(), kernel, "y and pre must have one shape");
  require(bias.shape.rank() == 0 || (bias.type == x.type && bias.elements() == y.columns()), kernel, "bias is [out]");
  count(stream, x.rows(), y.columns(), x.columns());
  if (x.rows() == 0) return;
  gemm::forward(stream, y, pre, x, w, bias);
}

void linear_input_gradient(Stream& stream, const Tensor& dx, const Tensor& dy, const Operand& w) {
  constexpr const char* kernel = "linear_input_gradient";
  check_member(w, dy, dy.columns(), dx.columns(), kernel);
  check_rows(dx, dy, kernel);
  count(stream, dy.rows(), dy.columns(), dx.columns());
  if (dy.rows() == 0) return;
  gemm::input_gradient(stream, dx, dy, w);
}

void linear_gelu_input_gradient(Stream& stream, const Tensor& dpre, const Tensor& dy, const Operand& w,
                                const Tensor& pre) {
  constexpr const char* kernel = "linear_gelu_input_gradient";
  check_member(w, dy, dy.columns(), dpre.columns(), kernel);
  check_rows(dpre, dy, kernel);
  require(pre.type == dpre.type && pre.shape == dpre.shape, kernel, "dpre and pre must have one shape");
  if (dy.rows() > 0 && gemm::gelu_input_gradient(stream, dpre, dy, w, pre))
    return count(stream, dy.rows(), dy.columns(), dpre.columns());
  linear_input_gradient(stream, dpre, dy, w);
  gelu_backward(stream, dpre, dpre, pre);
}

void linear_weight_gradient(Stream& stream, const Gradient& dw, const Tensor& dy, const Tensor& x) {
  constexpr const char* kernel = "linear_weight_gradient";
  check_rows(dy, x, kernel);
  check_real(x, kernel);
  check_gradient(dw, x, dy.columns() * x.columns(), kernel);
  count(stream, x.rows(), dy.columns(), x.columns());
  if (x.rows() == 0) return gemm::scale(stream, dw);
  gemm::weight_gradient(stream, dw, dy, x);
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

void gemm::scale(Stream& stream, const Gradient& sum) {
  if (sum.beta == 1) return;
  dispatch_real(sum.sum.type, "scale",
                [&]<class T>() { add_scaled<T>(stream, "scale", sum, sum.sum.elements(), Nothing<T>()); });
}

void expert_forward(Stream& stream, const Tensor& y, const Tensor& x, const ExpertOperands& w, const Tensor& offsets) {
  constexpr const char* kernel = "expert_forward";
  check_experts(y, x, w, offsets, {y.columns(), x.columns()}, kernel);
  count(stream, x.rows(), y.columns(), x.columns());
  if (x.rows() == 0) return;
  gemm::expert_forward(stream, y, x, w, offsets);
}

void expert_input_gradient(Stream& stream, const Tensor& dx, const Tensor& dy, const ExpertOperands& w,
                           const Tensor& offsets) {
  constexpr const char* kernel = "expert_input_gradient";
  check_experts(dx, dy, w, offsets, {dy.columns(), dx.columns()}, kernel);
  count(stream, dy.rows(), dy.columns(), dx.columns());
  if (dy.rows() == 0) return;
  gemm::expert_input_gradient(stream, dx, dy, w, offsets);
}

void expert_weight_gradient(Stream& stream, const ExpertGradients& dw, const Tensor& dy, const Tensor& x,
                            const Tensor& offsets, const Tensor& scratch) {
  constexpr const char* kernel = "expert_weight_gradient";
  require(dw.sums && dw.count > 0, kernel, "there must be a gradient");
  const std::int64_t experts = experts_of(offsets, dw.count, dw.sums[0].members, kernel);
  check_rows(dy, x, kernel);
  check_real(x, kernel);
  for (std::int64_t e = 0; e < experts; ++e) {
    const Gradient g = dw.expert(e);
    require(g.sum.type == sum_type(x.type), kernel, "a gradient is summed in fp32 (fp64 for fp64)");
    require(g.sum.elements() == dy.columns() * x.columns(), kernel, "the gradient does not fit the operands");
  }
  require(scratch.shape.rank() == 0 || (scratch.type == x.type && scratch.elements() == dy.columns() * x.columns()),
          kernel, "scratch is [out, in] of the operands' type");
  count(stream, x.rows(), dy.columns(), x.columns());
  gemm::expert_weight_gradient(stream, dw, dy, x, offsets, scratch);
}

}  // namespace tessera
