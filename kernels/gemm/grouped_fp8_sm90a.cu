// Products of experts whose factors are FP8 blocks, on Hopper's tensor cores. Sums of 128 codes are multiplied by their
// two scales and added up in fp32.
#include <cutlass/detail/blockwise_scale_layout.hpp>

#include "kernels/gemm/grouped.cuh"

namespace tessera::gemm {
namespace {

using Code = cutlass::float_e4m3_t;
constexpr int block = 128;  ///< codes that share a scale, along the sum

/// CUTLASS's main loop, adapted: it expects each expert's scales in an array of their own. It is told here where they
/// lie in the array of all rows' scales.
template <class Base>
struct AmongOthers : Base {
  using Params = typename Base::Params;
  using ScalesA = typename Base::InternalLayoutSFA;
  using ScalesB = typename Base::InternalLayoutSFB;

  template <class Shape>
  CUTLASS_DEVICE auto load_init(const Shape& shape, const Params& params) const {
    return with_scales(shape, params, nullptr, ScalesA{}, nullptr, ScalesB{});
  }
  template <class Inputs, class Shape>
  CUTLASS_DEVICE Inputs tensors_perform_update(const Inputs&, const Params& params, const Shape& shape,
                                               int expert) const {
    return with_scales(shape, params, params.ptr_SFA[expert], params.layout_SFA[expert], params.ptr_SFB[expert],
                       params.layout_SFB[expert]);
  }

 private:
  template <class Shape>
  CUTLASS_DEVICE auto with_scales(const Shape& shape, const Params& params, const float* a, const ScalesA& of_a,
                                  const float* b, const ScalesB& of_b) const {
    const auto inputs = Base::load_init(shape, params);
    return cute::make_tuple(cute::get<0>(inputs), cute::get<1>(inputs), cute::make_tensor(cute::make_gmem_ptr(a), of_a),
                            cute::make_tensor(cute::make_gmem_ptr(b), of_b));
  }
};

/// How scales lie. Those of rows are neighbours, one line of them per block of the sum. Those of weights, which 128
/// rows share, lie as their blocks do.
template <bool sums>
using Grids = cutlass::detail::Sm90BlockwiseScaleConfig<1, sums ? 1 : block, block, cute::GMMA::Major::MN,
                                                        sums ? cute::GMMA::Major::MN : cute::GMMA::Major::K>;
template <bool sums>
using GridA = decltype(Grids<sums>::deduce_layoutSFA());
template <bool sums>
using GridB = decltype(Grids<sums>::deduce_layoutSFB());

/// The summed dimension is contiguous in both factors' codes.
template <bool sums>
using Multiplier = grouped::Multiplier<sums, grouped::Factor<Code, grouped::RowMajor, GridA<sums>>,
                                   grouped::Factor<Code, grouped::ColumnMajor, GridB<sums>>,
                                   cute::Shape<cute::_128, cute::_128, cute::Int<block>>,
                                   cute::Shape<cute::_1, cute::_2, cute::_1>,
                                   cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperativeFP8Blockwise, AmongOthers>;

/// CUTLASS's layout of the scales of `rows` rows of `k` codes. Consecutive lines of scales begin `line` entries apart.
template <class Grid>
__host__ __device__ Grid scale_grid(int rows, int k, int line) {
  Grid grid;
  constexpr int shared = cute::size<0, 0>(Grid{});
  cute::get<0, 1>(grid.shape()) = (rows + shared - 1) / shared;
  cute::get<1, 1>(grid.shape()) = (k + block - 1) / block;
  cute::get<2>(grid.shape()) = 1;
  if constexpr (std::is_same_v<std::remove_cvref_t<decltype(cute::get<0, 1>(grid.stride()))>, cute::_1>)
    cute::get<1, 1>(grid.stride()) = line;
  else
    cute::get<0, 1>(grid.stride()) = line;
  cute::get<2>(grid.stride()) = 0;
  return grid;
}

/// The scales of all experts' rows: lines of neighbours, one a block of the sum.
struct ScalesOfRows {
  const float* first;
  int line;

  explicit ScalesOfRows(const Operand& rows)
      : first(rows.codes->scales.as<float>()), line(static_cast<int>(rows.codes->scales.columns())) {}
  __device__ const float* block_at(std::int64_t row) const { return first + row / block * line; }
};

/// Scales of both factors: where each expert's begin, and how they lie.
template <bool sums>
struct Scales {
  const float **a, **b;
  GridA<sums>* grid_a;
  GridB<sums>* grid_b;
  ScalesOfRows of_a, of_b;  ///< of_b: of the first weight, if it is a weight
  Pointers<const float> of_member;

  Scales(grouped::Arrays& arrays, const Addresses& at) : of_a(at.a), of_b(at.b.list[0]) {
    arrays.take(a, b, grid_a, grid_b);
    if constexpr (sums) return;
    of_member = pointers_of<const float>(at.b, [](const Operand& o) { return o.codes->scales.as<float>(); });
    of_member.stride = at.b.list[0].codes->scales.elements();
  }
  static constexpr std::int64_t bytes(std::int64_t experts) {
    return grouped::Arrays::bytes<void*, void*, GridA<sums>, GridB<sums>>(experts);
  }

  /// Writes the entries of expert e, whose rows begin at `begin`.
  __device__ void describe(const grouped::Problem<Multiplier<sums>>& p, int e, std::int64_t begin, int rows) const {
    if constexpr (sums) {
      a[e] = of_a.block_at(begin);
      b[e] = of_b.block_at(begin);
      grid_a[e] = scale_grid<GridA<sums>>(p.m, rows, of_a.line);
      grid_b[e] = scale_grid<GridB<sums>>(p.n, rows, of_b.line);
    } else {
      a[e] = of_a.first + begin;
      b[e] = of_member(e);
      grid_a[e] = scale_grid<GridA<sums>>(rows, p.k, of_a.line);
      grid_b[e] = scale_grid<GridB<sums>>(p.n, p.k, of_b.line);
    }
  }
  typename Multiplier<sums>::Kernel::MainloopArguments factors(const grouped::Table<Multiplier<sums>>& t) const {
    return {t.a, t.step_a, t.b, t.step_b, a, grid_a, b, grid_b};
  }
};

}  // namespace

void multiply_grouped_blocks(Stream& stream, const Product& product, const Addresses& at) {
  require(stream.dry() || grouped::lie_whole(at), "products of experts in FP8",
          "factors and results begin at multiples of 16 bytes");
  if (product.form == Form::weight_gradient)
    grouped::run<Multiplier<true>, Scales<true>>(stream, product, at);
  else
    grouped::run<Multiplier<false>, Scales<false>>(stream, product, at);
}

}  // namespace tessera::gemm
