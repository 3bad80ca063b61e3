// The host's back end. Products are cut into tiles, each of them one call of a library.
#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/base/math.hpp"
#include "kernels/gemm/back.hpp"
#include "kernels/gemm/choice.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/plans.hpp"

namespace tessera::gemm {
namespace {

constexpr std::int64_t column_step = 64;

// Depths of weight gradients' pieces. Experts have any number of rows; libraries see only these depths (or row_chunks()
// rows), so few plans serve all. The last piece is padded with zeros.
constexpr std::int64_t depth_chunks[] = {512, 256, 128, 64, 32};

// The largest chunk that fits `left`; the smallest one if none does.
std::int64_t next_chunk(std::span<const std::int64_t> chunks, std::int64_t left) {
  for (std::int64_t size : chunks)
    if (size <= left) return size;
  return chunks.back();
}

std::byte* element(const Tensor& t, std::int64_t index) {
  return static_cast<std::byte*>(t.data) + index * size_of(t.type);
}

struct Tile {
  std::int64_t row, column, rows, columns;
};

// How a product is cut. The cut changes no bits: columns and depth follow from the product's shape alone, and bits do
// not depend on how rows are cut.
struct Cut {
  std::int64_t rows, columns, depth;
};
Cut cut_of(const Product& whole) {
  const bool summed_over_rows = whole.stored_a() == Stored::transposed;
  const std::int64_t rows = std::min(whole.m, rows_of_call(whole));
  // 512 rows of both factors of a weight gradient fit the second-level cache: 1.2 times as fast as 2048.
  const std::int64_t depth = std::min(whole.k, std::int64_t{summed_over_rows ? 512 : 4096});
  const double limit = operations_of_call / (2.0 * static_cast<double>(rows) * static_cast<double>(depth));
  const std::int64_t strips = ceil_div(whole.n, std::max(column_step, static_cast<std::int64_t>(limit)));
  return {rows, strips == 1 ? whole.n : round_up(ceil_div(whole.n, strips), column_step), depth};
}

// f(tile) for the tiles of [m,n]; a strip of tiles shares its part of b while that is in the cache.
template <class F>
void for_each_tile(const Product& whole, const F& f) {
  const Cut cut = cut_of(whole);
  for (std::int64_t column = 0; column < whole.n; column += cut.columns)
    for (std::int64_t row = 0; row < whole.m; row += cut.rows)
      f(Tile{row, column, std::min(cut.rows, whole.m - row), std::min(cut.columns, whole.n - column)});
}

// The default `after` of sum_pieces(): no activation follows.
struct Nothing {
  void operator()(std::int64_t, std::int64_t, std::int64_t) const {}
};

// Whether a tile is summed in fp32 in scratch memory, and scaled or rounded once when it is stored.
bool finished_late(const Product& whole) {
  return whole.scaled || (whole.sum == DType::bf16 && whole.k > cut_of(whole).depth);
}

// The part of `whole` that one call computes: piece `index` of a tile. The first piece alone adds beta c and the bias;
// of a scaled product neither, since ScaleRow adds them after alpha.
Product part_of(const Product& whole, const Tile& tile, std::int64_t depth, std::size_t index) {
  Product part = whole;
  part.m = tile.rows;
  part.n = tile.columns;
  part.k = depth;
  if (index > 0 || whole.scaled) {
    part.beta = index > 0 ? 1 : 0;
    part.epilogue = Epilogue::none;
  }
  part.scaled = false;
  if (finished_late(whole)) {
    part.sum = DType::f32;
    part.ldc = tile.columns;
  }
  return part;
}

// Row r of out = row r of a tile's fp32 sums, rounded once.
struct RoundRow {
  bf16* out;
  std::int64_t distance;
  const float* sum;
  std::int64_t columns;

  void operator()(std::int64_t r) const {
    Row().each(columns, [=, *this](std::int64_t j) { out[r * distance + j] = bf16(sum[r * columns + j]); });
  }
};

// Row r of c = alpha times a tile's sums + bias + beta c: rounded to fp32 after each operation, then to c's type.
template <class T>
struct ScaleRow {
  T* c;
  std::int64_t distance;
  const float* sum;
  std::int64_t columns;
  float alpha, beta;
  const bf16* bias;

  void operator()(std::int64_t r) const {
    const float* const from = sum + r * columns;
    T* const to = c + r * distance;
    if (bias != nullptr)
      Row().each(columns, [=, *this](std::int64_t j) { to[j] = T(alpha * from[j] + float(bias[j])); });
    else if (beta != 0)
      Row().each(columns, [=, *this](std::int64_t j) { to[j] = T(alpha * from[j] + beta * float(to[j])); });
    else
      Row().each(columns, [=, *this](std::int64_t j) { to[j] = T(alpha * from[j]); });
  }
};

std::byte* sum_of(Plans& plans, const Tile& tile) { return plans.sum(tile.rows * tile.columns * size_of(DType::f32)); }

// Addresses of a tile's factors, bias and sums. `sums` is scratch if the tile is finished late, else `c`.
struct TilePlaces {
  std::byte *c, *sums;
  std::int64_t bias, a, b;  // bytes from the product's own addresses

  TilePlaces(Plans& plans, const Product& whole, void* begin, const Tile& tile) {
    const std::int64_t in = size_of(whole.type);
    c = static_cast<std::byte*>(begin) + (tile.row * whole.ldc + tile.column) * size_of(whole.sum);
    sums = finished_late(whole) ? sum_of(plans, tile) : c;
    bias = tile.column * in;
    a = tile.row * (whole.stored_a() == Stored::plain ? whole.lda : 1) * in;
    b = tile.column * (whole.stored_b() == Stored::plain ? 1 : whole.ldb) * in;
  }
  RoundRow round(const Product& whole, const Tile& tile) const {
    return {reinterpret_cast<bf16*>(c), whole.ldc, reinterpret_cast<const float*>(sums), tile.columns};
  }
};

// The bias that is added to the sums of a product, and the factor alpha that multiplies them; null: none.
struct Added {
  const void* bias = nullptr;
  const float* alpha = nullptr;
};

void finish_tile(Stream& stream, const Product& whole, const Tile& tile, const TilePlaces& at, const Added& added) {
  if (!finished_late(whole)) return;
  if (!whole.scaled) return launch(stream, "gemm_round", tile.rows, at.round(whole, tile));
  const bf16* const bias = added.bias ? static_cast<const bf16*>(added.bias) + tile.column : nullptr;
  const auto scale = [&]<class T>(T* c) {
    launch(stream, "gemm_scale", tile.rows,
           ScaleRow<T>{c, whole.ldc, reinterpret_cast<const float*>(at.sums), tile.columns, *added.alpha, whole.beta,
                       bias});
  };
  whole.sum == DType::bf16 ? scale(reinterpret_cast<bf16*>(at.c)) : scale(reinterpret_cast<float*>(at.c));
}

// Computes one tile by one library call a piece.
template <class After>
void multiply_tile(Stream& stream, Plans& plans, const Product& whole, const Tile& tile, const TilePlaces& at,
                   std::span<const DepthRange> pieces, const Added& added, const After& after) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Product part = part_of(whole, tile, pieces[i].depth, i);
    plans.plan(part).run(at.sums, pieces[i].a + at.a, pieces[i].b + at.b,
                         part.biased() ? static_cast<const std::byte*>(added.bias) + at.bias : nullptr);
    stream.progress();
  }
  finish_tile(stream, whole, tile, at, added);
  if constexpr (!std::is_same_v<After, Nothing>)
    launch(stream, "gemm_after", tile.rows, [=](std::int64_t r) { after(tile.row + r, tile.column, tile.columns); });
}

// Makes the plans and the scratch memory that the pieces of a product will need.
void plan_tiles(Plans& plans, const Product& whole, std::span<const DepthRange> pieces) {
  for_each_tile(whole, [&](const Tile& tile) {
    if (finished_late(whole)) sum_of(plans, tile);
    for (std::size_t i = 0; i < pieces.size(); ++i) plans.plan(part_of(whole, tile, pieces[i].depth, i));
  });
}

// c = beta c + alpha (sum over pieces of a b) + bias. whole.k is the depth by which tiles are cut. after(row, column,
// columns) runs on parts of rows while they are in the cache.
template <class After = Nothing>
void sum_pieces(Stream& stream, const Product& whole, void* c, std::span<const DepthRange> pieces,
                const Added& added = {}, const After& after = {}) {
  Plans& plans = stream.library<Plans>();
  if (stream.dry()) {
    if (plans.first(whole)) plan_tiles(plans, whole, pieces);
    return;
  }
  for_each_tile(whole, [&](const Tile& tile) {
    const TilePlaces at(plans, whole, c, tile);
    multiply_tile(stream, plans, whole, tile, at, pieces, added, after);
  });
}

// Cuts the summed dimension into equal pieces: a deep product is summed in fp32 before it is rounded.
std::span<const DepthRange> even_pieces(Plans& plans, const Product& whole, const void* a, const void* b) {
  const std::int64_t depth = round_up(ceil_div(whole.k, ceil_div(whole.k, cut_of(whole).depth)), column_step);
  const std::int64_t step_a = (whole.stored_a() == Stored::plain ? 1 : whole.lda) * size_of(whole.type);
  const std::int64_t step_b = (whole.stored_b() == Stored::plain ? whole.ldb : 1) * size_of(whole.type);
  plans.pieces.clear();
  for (std::int64_t k = 0; k < whole.k; k += depth)
    plans.pieces.push_back({static_cast<const std::byte*>(a) + k * step_a,
                            static_cast<const std::byte*>(b) + k * step_b, std::min(depth, whole.k - k)});
  return plans.pieces;
}

// The product that is described to libraries: one expert's, without the epilogue and scaling that are computed here.
Product library_part(Product p) {
  p.experts = 0;
  p.epilogue = p.biased() ? Epilogue::bias : Epilogue::none;
  return p;
}

template <class T>
struct Gelu {
  T* y;
  const T* pre;
  std::int64_t distance;

  void operator()(std::int64_t row, std::int64_t column, std::int64_t columns) const {
    const T* const from = pre + row * distance + column;
    T* const to = y + row * distance + column;
    Row().each(columns, [=](std::int64_t j) { to[j] = static_cast<T>(gelu_of(static_cast<Accumulator<T>>(from[j]))); });
  }
};

// Reserves memory for padded factors: fewer rows than the smallest chunk.
void plan_padding(Plans& plans, const Product& whole, std::int64_t columns, std::int64_t others) {
  const std::int64_t rows = std::max(row_chunks(whole.type).back(), std::end(depth_chunks)[-1]);
  plans.padded(0, rows * columns * size_of(whole.type));
  plans.padded(1, rows * others * size_of(whole.type));
}

// Makes all plans that any number of rows of an expert may need, so that nothing is allocated after the first step.
void plan_rows(Plans& plans, Product whole) {
  if (!plans.first(whole)) return;
  plan_padding(plans, whole, whole.k, whole.n);
  for (std::int64_t rows : row_chunks(whole.type)) {
    whole.m = rows;
    plan_tiles(plans, whole, even_pieces(plans, whole, nullptr, nullptr));
  }
}
void plan_depths(Plans& plans, const Product& whole) {
  if (!plans.first(whole)) return;
  plan_padding(plans, whole, whole.m, whole.n);
  for (std::int64_t depth : depth_chunks)
    for_each_tile(whole, [&](const Tile& tile) {
      if (finished_late(whole)) sum_of(plans, tile);
      for (std::size_t index : {0, 1}) plans.plan(part_of(whole, tile, depth, index));
    });
}

// `rows` rows of `t` from `begin`, followed by zeros up to `length`.
std::byte* pad(Plans& plans, int which, const Tensor& t, std::int64_t begin, std::int64_t rows, std::int64_t length) {
  const auto bytes = [&](std::int64_t n) { return static_cast<std::size_t>(n * t.columns() * size_of(t.type)); };
  std::byte* padded = plans.padded(which, static_cast<std::int64_t>(bytes(length)));
  std::memcpy(padded, element(t, begin * t.columns()), bytes(rows));
  std::memset(padded + bytes(rows), 0, bytes(length - rows));
  return padded;
}

struct Range {
  std::int64_t begin, end;
};
Range rows_of(const Tensor& offsets, std::int64_t expert, std::int64_t rows) {
  const std::int32_t* o = offsets.as<std::int32_t>();
  const Range range{o[expert], o[expert + 1]};
  require(range.begin >= 0 && range.begin <= range.end && range.end <= rows, "expert",
          "offsets must ascend within the rows");
  return range;
}

// c = a b for each expert's rows.
void experts_times(Stream& stream, const Product& product, const Addresses& at) {
  Plans& plans = stream.library<Plans>();
  Product whole = library_part(product);
  whole.m = row_chunks(product.type)[0];
  plan_rows(plans, whole);
  if (stream.dry()) return;
  const Tensor &in = at.a.data, &out = at.c.list[0].sum;
  const float* const alpha = product.scaled ? at.alpha.as<float>() : nullptr;
  for (std::int64_t e = 0; e < product.experts; ++e) {
    const Range range = rows_of(at.offsets, e, product.m);
    const void* weight = at.b[e].data.data;
    for (std::int64_t row = range.begin; row < range.end; row += whole.m) {
      const std::int64_t left = range.end - row;
      whole.m = next_chunk(row_chunks(in.type), left);
      const bool fits = whole.m <= left;
      const void* from = fits ? element(in, row * whole.k) : pad(plans, 0, in, row, left, whole.m);
      std::byte* place = element(out, row * whole.n);
      std::byte* to = fits ? place : plans.padded(1, whole.m * whole.n * size_of(out.type));
      sum_pieces(stream, whole, to, even_pieces(plans, whole, from, weight), {nullptr, alpha ? alpha + e : nullptr});
      if (!fits) std::memcpy(place, to, static_cast<std::size_t>(left * whole.n * size_of(out.type)));
    }
  }
}

// The rows of one expert as pieces of a summed dimension, the last padded with zeros.
std::span<const DepthRange> row_pieces(Plans& plans, const Tensor& dy, const Tensor& x, Range range) {
  plans.pieces.clear();
  for (std::int64_t row = range.begin; row < range.end;) {
    const std::int64_t left = range.end - row;
    const std::int64_t depth = next_chunk(depth_chunks, left);
    if (depth <= left)
      plans.pieces.push_back({element(dy, row * dy.columns()), element(x, row * x.columns()), depth});
    else
      plans.pieces.push_back(
          {pad(plans, 0, dy, row, left, depth), pad(plans, 1, x, row, left, depth), depth});
    row += depth;
  }
  return plans.pieces;
}

// c = beta c + a^T b over the rows of each expert.
void sum_over_experts_rows(Stream& stream, const Product& product, const Addresses& at) {
  Plans& plans = stream.library<Plans>();
  const bool fused = product.epilogue != Epilogue::rounded;
  Product whole = library_part(product);
  whole.k = depth_chunks[0];
  if (!fused) whole.beta = 0;
  // The whole product is summed in fp32 before it is rounded to the operands' type, as a dense one is.
  const bool rounds = !fused && product.type != product.sum;
  const std::int64_t bytes = whole.m * whole.n * size_of(whole.sum);
  void* const place = !rounds ? at.aux.data : product.scaled ? plans.whole_sum(bytes) : plans.sum(bytes);
  plan_depths(plans, whole);
  if (stream.dry()) return;
  for (std::int64_t e = 0; e < product.experts; ++e) {
    const Gradient sum = at.c[e];
    const Range range = rows_of(at.offsets, e, product.k);
    if (range.begin == range.end) {
      scale(stream, sum);
      continue;
    }
    const auto pieces = row_pieces(plans, at.a.data, at.b.list[0].data, range);
    sum_pieces(stream, whole, fused ? sum.sum.data : place, pieces, {nullptr, at.alpha.as<float>()});
    if (fused) continue;
    if (rounds)
      launch(stream, "gemm_round", whole.m,
             RoundRow{at.aux.as<bf16>(), whole.n, static_cast<const float*>(place), whole.n});
    accumulate(stream, sum, at.aux);
  }
}

void one_product(Stream& stream, const Product& product, const Addresses& at) {
  const Product whole = library_part(product);
  const Tensor& c = at.c.list[0].sum;
  const auto pieces = even_pieces(stream.library<Plans>(), whole, at.a.data.data, at.b.list[0].data.data);
  const bool activated = product.epilogue == Epilogue::gelu || product.epilogue == Epilogue::bias_gelu;
  const Added added{at.bias.data, at.alpha.as<float>()};
  if (!activated) return sum_pieces(stream, whole, c.data, pieces, added);
  dispatch_real(c.type, "gelu", [&]<class T>() {
    sum_pieces(stream, whole, at.aux.data, pieces, added, Gelu<T>{c.as<T>(), at.aux.as<T>(), c.columns()});
  });
}

template <class T>
void sum_rows(Stream& stream, const Gradient& db, const Tensor& dy) {
  using A = Accumulator<T>;
  constexpr std::int64_t width = 128, group = 64, launch_elements = 1 << 20;
  const std::int64_t columns = dy.columns(), rows = dy.rows();
  const std::int64_t rows_per_launch = round_up(ceil_div(launch_elements, columns), group);
  const T* const y = dy.as<T>();
  A* const sum = db.sum.as<A>();
  for (std::int64_t first = 0; first < rows; first += rows_per_launch) {
    const std::int64_t last = std::min(rows, first + rows_per_launch);
    const A beta = first == 0 ? static_cast<A>(db.beta) : A(1);
    launch(
        stream, "bias_gradient", ceil_div(columns, width), KOKKOS_LAMBDA(std::int64_t b) {
          const std::int64_t begin = b * width, count = columns - begin < width ? columns - begin : width;
          A total[width];
          for (std::int64_t j = 0; j < count; ++j) total[j] = beta == A(0) ? A(0) : beta * sum[begin + j];
          // Rows are added 64 at a time: two short chains of additions round less than one long chain.
          for (std::int64_t r0 = first; r0 < last; r0 += group) {
            A part[width] = {};
            for (std::int64_t r = r0; r < r0 + group && r < last; ++r)
              for (std::int64_t j = 0; j < count; ++j) part[j] += static_cast<A>(y[r * columns + begin + j]);
            for (std::int64_t j = 0; j < count; ++j) total[j] += part[j];
          }
          for (std::int64_t j = 0; j < count; ++j) sum[begin + j] = total[j];
        });
  }
}

}  // namespace

// Returns false for dgelu: the host's libraries have no product with gelu's gradient.
bool multiply(Stream& stream, const Product& product, const Addresses& at) {
  if (product.epilogue == Epilogue::dgelu) return false;
  if (product.experts == 0)
    one_product(stream, product, at);
  else if (product.form == Form::weight_gradient)
    sum_over_experts_rows(stream, product, at);
  else
    experts_times(stream, product, at);
  return true;
}

void bias_gradient(Stream& stream, const Gradient& db, const Tensor& dy) {
  dispatch_real(dy.type, "bias_gradient", [&]<class T>() { sum_rows<T>(stream, db, dy); });
}

LibraryChoices::Words choose(Stream&, const LibraryChoices::Words&, const LibraryChoices::Words&) { return {}; }

}  // namespace tessera::gemm

namespace tessera {

std::int64_t most_discrete_experts() { return std::numeric_limits<std::int64_t>::max(); }

}  // namespace tessera
