#include "kernels/base/columns.cuh"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/base/math.hpp"
#include "kernels/gemm/back.hpp"
#include "kernels/gemm/choice.hpp"
#include "kernels/gemm/lt.hpp"

namespace tessera::gemm {
namespace {

bool run(Stream& stream, const LtProduct& product, const LtPlaces& at) {
  LibraryChoices& choices = stream.library<LibraryChoices>();
  void* const workspace = stream.workspace("cuBLASLt", LtPlans::workspace_bytes);
  if (!stream.dry())
    return stream.library<LtPlans>().run(space_of(stream).cuda_stream(), workspace, product, at, choices);
  choices.of.try_emplace(LtPlans::work(product, at));
  return true;
}

void run_always(Stream& stream, const LtProduct& product, const LtPlaces& at) {
  if (!run(stream, product, at)) refuse("cuBLASLt", "has no such product");
}

/// out [m,n] = in [m,k] times w or w^T, w [out,in] as it lies.
LtProduct rows_times(const Tensor& out, const Tensor& in, Form weight) {
  LtProduct p{.type = in.type, .sum = out.type, .b = weight, .m = in.rows(), .n = out.columns(), .k = in.columns()};
  p.lda = p.k;
  p.ldb = weight == Form::plain ? p.n : p.k;
  p.ldc = p.n;
  return p;
}

/// Whether the library's epilogues can be had: those of its kernels for odd sizes round a bf16 sum before they add to
/// it.
bool regular(const LtProduct& p, const Tensor& x, const Tensor& y) {
  return p.n % 8 == 0 && p.k % 8 == 0 && columns::aligned(x) && columns::aligned(y);
}

/// Every row of y = bias: where the library adds no bias the product is added to it, so that the sum is rounded once.
template <class T>
void broadcast(Stream& stream, const Tensor& y, const Tensor& bias) {
  const std::int64_t columns = y.columns();
  T* out = y.as<T>();
  const T* b = bias.as<T>();
  launch(
      stream, "broadcast_bias", y.elements(), KOKKOS_LAMBDA(std::int64_t i) { out[i] = b[i % columns]; });
}

template <class T>
void activate(Stream& stream, const Tensor& y, const Tensor& pre) {
  T* out = y.as<T>();
  const T* in = pre.as<T>();
  launch(
      stream, "gelu", y.elements(), KOKKOS_LAMBDA(std::int64_t i) { out[i] = T(gelu_of(Accumulator<T>(in[i]))); });
}

void plain_forward(Stream& stream, const Tensor& y, const Tensor& x, const Operand& w, const Tensor& bias) {
  LtProduct p = rows_times(y, x, Form::transposed);
  if (!bias) return run_always(stream, p, {x.data, w.data.data, y.data});
  p.epilogue = Epilogue::bias;
  if (regular(p, x, y) && run(stream, p, {x.data, w.data.data, y.data, bias.data})) return;
  dispatch_real(y.type, "linear_forward", [&]<class T>() { broadcast<T>(stream, y, bias); });
  p.epilogue = Epilogue::none;
  p.beta = 1;
  run_always(stream, p, {x.data, w.data.data, y.data});
}

template <class T, int lanes>
struct AddRow {
  const T* dy;
  std::int64_t columns;
  template <class A>
  __device__ void operator()(std::int64_t row, std::int64_t column, A (&sum)[1][lanes]) const {
    const auto line = columns::Lanes<T, lanes>::at(dy + row * columns + column);
    for (int l = 0; l < lanes; ++l) sum[0][l] += A(line.value[l]);
  }
};

template <class T>
void column_sums(Stream& stream, const Gradient& db, const Tensor& dy) {
  using A = Accumulator<T>;
  const std::int64_t rows = dy.rows(), n = dy.columns();
  const std::int64_t bytes = columns::blocks_of(rows) * n * static_cast<std::int64_t>(sizeof(A));
  A* const parts[] = {reinterpret_cast<A*>(stream.workspace("sums of rows", bytes))};
  stream.count_launch();
  if (stream.dry()) return;
  const cudaStream_t queue = space_of(stream).cuda_stream();
  constexpr int lanes = columns::widest<T>;
  if (n % lanes == 0 && columns::aligned(dy))
    columns::start_blocks<lanes>(queue, parts, rows, n, AddRow<T, lanes>{dy.as<T>(), n});
  else
    columns::start_blocks<1>(queue, parts, rows, n, AddRow<T, 1>{dy.as<T>(), n});
  columns::start_add<A>(queue, db, parts[0], rows, n);
}

}  // namespace

LibraryChoices::Words choose(Stream& stream, const LibraryChoices::Words& work,
                             const LibraryChoices::Words& preferred) {
  return stream.library<LtPlans>().choose(work, preferred);
}

void forward(Stream& stream, const Tensor& y, const Tensor& pre, const Tensor& x, const Operand& w,
             const Tensor& bias) {
  if (!pre) return plain_forward(stream, y, x, w, bias);
  LtProduct p = rows_times(y, x, Form::transposed);
  p.epilogue = bias ? Epilogue::bias_gelu : Epilogue::gelu;
  // The library's gelu is single precision's and good to bf16's digits only.
  if (y.type == DType::bf16 && regular(p, x, y) && run(stream, p, {x.data, w.data.data, y.data, bias.data, pre.data}))
    return;
  plain_forward(stream, pre, x, w, bias);
  dispatch_real(y.type, "linear_forward", [&]<class T>() { activate<T>(stream, y, pre); });
}

void input_gradient(Stream& stream, const Tensor& dx, const Tensor& dy, const Operand& w) {
  run_always(stream, rows_times(dx, dy, Form::plain), {dy.data, w.data.data, dx.data});
}

bool gelu_input_gradient(Stream& stream, const Tensor& dpre, const Tensor& dy, const Operand& w, const Tensor& pre) {
  LtProduct p = rows_times(dpre, dy, Form::plain);
  p.epilogue = Epilogue::dgelu;
  return dy.type == DType::bf16 && regular(p, dy, dpre) &&
         run(stream, p, {dy.data, w.data.data, dpre.data, nullptr, pre.data});
}

void weight_gradient(Stream& stream, const Gradient& dw, const Tensor& dy, const Tensor& x) {
  LtProduct p{
      .type = x.type, .sum = dw.sum.type, .a = Form::transposed, .m = dy.columns(), .n = x.columns(), .k = x.rows()};
  p.lda = p.m;
  p.ldb = p.ldc = p.n;
  p.beta = dw.beta;
  run_always(stream, p, {dy.data, x.data, dw.sum.data});
}

// The library's own sums of rows beside a weight gradient are a kernel of half this one's speed.
void bias_gradient(Stream& stream, const Gradient& db, const Tensor& dy) {
  dispatch_real(dy.type, "bias_gradient", [&]<class T>() { column_sums<T>(stream, db, dy); });
}

}  // namespace tessera::gemm
