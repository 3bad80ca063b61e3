#include "kernels/base/columns.cuh"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/gemm/back.hpp"
#include "kernels/gemm/choice.hpp"
#include "kernels/gemm/experts.hpp"
#include "kernels/gemm/gelu.hpp"
#include "kernels/gemm/instructions.hpp"
#include "kernels/gemm/lt.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera::gemm {
namespace {

LtPlaces places_of(const Product& product, const Addresses& at) {
  LtPlaces places{at.a.data.data, at.b.list[0].data.data, at.c.list[0].sum.data, at.bias.data, at.aux.data};
  if (product.a) {
    places.scales_a = at.a.codes->scales.data;  // none where a tensor's scale is the only one
    places.scales_b = at.b.list[0].codes->scales.data;
  }
  if (!product.scaled) return places;
  require(product.beta == 0 || product.beta == 1, "scaled product", "beta is 0 or 1");
  places.alpha = at.alpha.as<float>();
  places.beta = places.alpha + (product.beta == 0 ? 1 : 2);
  return places;
}

bool run(Stream& stream, const Product& product, const Addresses& at) {
  LibraryChoices& choices = stream.library<LibraryChoices>();
  void* const workspace = stream.workspace("cuBLASLt", LtPlans::workspace_bytes);
  const LtPlaces places = places_of(product, at);
  if (!stream.dry())
    return stream.library<LtPlans>().run(space_of(stream).cuda_stream(), workspace, product, places, choices);
  choices.of.try_emplace(LtPlans::work(product, places));
  return true;
}

void run_always(Stream& stream, const Product& product, const Addresses& at) {
  if (!run(stream, product, at)) refuse("cuBLASLt", "has no such product");
}

/// Whether the sides and places suit cuBLASLt's epilogues. Its kernels for odd sizes round a bf16 sum before the
/// epilogue adds to it.
bool regular(const Product& p, const Addresses& at) {
  return p.n % 8 == 0 && p.k % 8 == 0 && columns::aligned(at.a.data) && columns::aligned(at.c.list[0].sum);
}

/// Fused gelu: by CUTLASS if this build has it for the GPU at hand. For cuBLASLt's own gelu makes a product a third
/// slower, and is good to bf16's digits only.
bool run_gelu(Stream& stream, const Product& p, const Addresses& at) {
  if (p.a || p.type != DType::bf16 || !regular(p, at)) return false;  // of codes: the quantizer computes the gelu
#ifdef TESSERA_HOPPER
  if (processor() == 90 && columns::aligned(at.b.list[0].data) && columns::aligned(at.aux) &&
      columns::aligned(at.bias)) {
    multiply_gelu(stream, p, at);
    return true;
  }
#endif
  return run(stream, p, at);
}

/// Every row of y = bias. Serves products for which the library adds no bias: they are added to y (beta 1), so that the
/// sum is rounded once.
template <class T>
void broadcast(Stream& stream, const Tensor& y, const Tensor& bias) {
  const std::int64_t columns = y.columns();
  T* out = y.as<T>();
  const T* b = bias.as<T>();
  launch(
      stream, "broadcast_bias", y.elements(), KOKKOS_LAMBDA(std::int64_t i) { out[i] = b[i % columns]; });
}

void run_biased(Stream& stream, Product p, Addresses at) {
  if (regular(p, at) && run(stream, p, at)) return;
  const Tensor& y = at.c.list[0].sum;
  dispatch_real(y.type, "linear_forward", [&]<class T>() { broadcast<T>(stream, y, at.bias); });
  p.epilogue = Epilogue::none;
  p.beta = 1;
  at.bias = {};
  run_always(stream, p, at);
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
  if constexpr (std::is_same_v<T, A>) {
    if (rows <= columns::most_blocks) {  // partial sums of a quantizer: one launch
      stream.count_launch();
      if (!stream.dry()) columns::start_add_rows(space_of(stream).cuda_stream(), db, dy.as<A>(), rows, n);
      return;
    }
  }
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

bool has_instructions(DType) { return true; }

LibraryChoices::Words choose(Stream& stream, const LibraryChoices::Words& work,
                             const LibraryChoices::Words& preferred) {
  return stream.library<LtPlans>().choose(work, preferred);
}

bool multiply(Stream& stream, const Product& described, const Addresses& at) {
  if (described.experts > 0) {
    multiply_experts(stream, described, at);
    return true;
  }
  const Product product = described.a ? as_codes_lie(described) : described;
  if (product.epilogue == Epilogue::none)
    run_always(stream, product, at);
  else if (product.epilogue == Epilogue::bias)
    run_biased(stream, product, at);
  else
    return run_gelu(stream, product, at);
  return true;
}

// A kernel of our own, twice as fast as cuBLASLt's sums of rows fused into a weight gradient.
void bias_gradient(Stream& stream, const Gradient& db, const Tensor& dy) {
  dispatch_real(dy.type, "bias_gradient", [&]<class T>() { column_sums<T>(stream, db, dy); });
}

}  // namespace tessera::gemm
