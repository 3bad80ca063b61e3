// The host's back end: blocks of queries against strips of keys. Libraries compute the products, our loops the softmax
// between them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/back.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/base/math.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/gemm/plans.hpp"

namespace tessera::attention {
namespace {

using gemm::Form;
using gemm::Plan;
using gemm::Plans;
using gemm::Product;

constexpr std::int64_t block_rows = 128, strip_keys = 512, vector_length = 16;

// Number of lanes, tasks that run at the same time: one pair of a sequence and a head per thread.
int lanes_of(std::int64_t tasks) { return static_cast<int>(std::min<std::int64_t>(Runtime::threads(), tasks)); }

// A block of queries, the first strip of keys that any of them may see, and a strip of keys [key, key + keys).
struct Block {
  std::int64_t row, rows, first = 0;
  std::int64_t keys() const { return row + rows; }
};
struct Strip {
  std::int64_t key, keys;
};

// Where heads lie in the packed projections, in elements.
struct HeadOffsets {
  std::int64_t length, heads, groups, dim, columns;
  const std::int32_t* positions;  // of all tokens in their documents; null: a sequence is one document

  HeadOffsets(const AttentionShape& s, const Tensor& documents)
      : length(s.length),
        heads(s.heads),
        groups(s.kv_heads),
        dim(s.head_dim),
        columns(s.columns()),
        positions(documents ? documents.as<std::int32_t>() : nullptr) {}
  // First key that a query of a sequence sees.
  std::int64_t first_key(std::int64_t sequence, std::int64_t row) const {
    if (positions == nullptr) return 0;  // mutation: attention_crosses_documents
    return std::max<std::int64_t>(0, row - positions[sequence * length + row]);
  }
  Block in(std::int64_t sequence, Block block) const {
    block.first = first_key(sequence, block.row) / strip_keys * strip_keys;
    return block;
  }
  std::int64_t out_columns() const { return heads * dim; }
  std::int64_t query(std::int64_t sequence, std::int64_t head) const {
    return sequence * length * columns + head * dim;
  }
  std::int64_t key(std::int64_t sequence, std::int64_t group) const { return query(sequence, heads + group); }
  std::int64_t value(std::int64_t sequence, std::int64_t group) const { return key(sequence, groups + group); }
  std::int64_t out(std::int64_t sequence, std::int64_t head) const {
    return sequence * length * out_columns() + head * dim;
  }
  std::int64_t lse(std::int64_t sequence, std::int64_t head) const { return (sequence * heads + head) * length; }
  std::int64_t group_of(std::int64_t head) const { return head / (heads / groups); }
  template <class A>
  A scale() const {
    return static_cast<A>(1 / std::sqrt(static_cast<double>(dim)));
  }
};

// Elements from one row of scores to the next. Not a power of two, so that rows do not share the same sets of the
// cache.
std::int64_t padded(std::int64_t keys) { return round_up(keys, 32) + 16; }

// The products of one block and strip. Pointers lead to the stream's plans, which stay valid.
template <class T>
class Products {
 public:
  using A = Accumulator<T>;
  Products(Plans& plans, const HeadOffsets& at, std::int64_t distance, int lanes)
      : plans_(plans), at_(at), distance_(distance), lanes_(lanes) {}

  /// scores = rows of `in` (with `in_columns` per row) times the strip's keys or values.
  Plan& scores(const Block& block, const Strip& strip, std::int64_t in_columns) const {
    Product p = shaped(block.rows, strip.keys, at_.dim);
    p.form = Form::forward;
    p.lda = in_columns;
    p.ldb = at_.columns;
    p.ldc = distance_;
    return plans_.plan(p, lanes_);
  }
  /// sum [rows, D] (+)= weights times the strip's values or keys.
  Plan& weighted(const Block& block, const Strip& strip) const {
    Product p = shaped(block.rows, at_.dim, strip.keys);
    p.lda = distance_;
    p.ldb = at_.columns;
    p.ldc = at_.dim;
    p.beta = strip.key == block.first ? 0 : 1;
    return plans_.plan(p, lanes_);
  }
  /// sum [keys, D] = beta sum + weights^T times rows of `in`.
  Plan& transposed(const Block& block, const Strip& strip, std::int64_t in_columns, float beta) const {
    Product p = shaped(strip.keys, at_.dim, block.rows);
    p.form = Form::weight_gradient;
    p.lda = distance_;
    p.ldb = in_columns;
    p.ldc = at_.dim;
    p.beta = beta;
    return plans_.plan(p, lanes_);
  }

 private:
  static Product shaped(std::int64_t m, std::int64_t n, std::int64_t k) {
    return {.type = dtype_of<T>, .sum = dtype_of<A>, .m = m, .n = n, .k = k};
  }
  Plans& plans_;
  const HeadOffsets& at_;
  std::int64_t distance_;
  int lanes_;
};

template <class F>
void each_strip(const Block& block, const F& f) {
  for (std::int64_t key = block.first; key < block.keys(); key += strip_keys)
    f(Strip{key, std::min(strip_keys, block.keys() - key)});
}

// Calls f with a block and a strip of each shape and position that plans differ by. They are the first, the second, and
// the last, which is the first where a document begins there.
template <class F>
void each_kind_of_strip(const HeadOffsets& at, Block block, const F& f) {
  const std::int64_t last = (block.keys() - 1) / strip_keys;
  const auto strip = [&](std::int64_t i) {
    return Strip{i * strip_keys, std::min(strip_keys, block.keys() - i * strip_keys)};
  };
  for (const std::int64_t i : {std::int64_t{0}, std::min<std::int64_t>(1, last), last}) f(block, strip(i));
  block.first = last * strip_keys;
  if (at.positions != nullptr) f(block, strip(last));
}

// A lane's part of a scratch tensor [lanes, rows, columns].
template <class A>
A* lane_of(const Tensor& scratch, int lane) {
  return scratch.as<A>() + lane * scratch.shape[1] * scratch.shape[2];
}

// Masks the scores before `first`, and those from `end` on up to a whole number of vectors. Returns that number of
// scores: loops over it have no slow remainder. The padding of rows leaves room for it.
template <class A>
std::int64_t mask(A* scores, std::int64_t first, std::int64_t end) {
  const std::int64_t whole = round_up(end, vector_length);
  for (std::int64_t j = 0; j < first; ++j) scores[j] = -std::numeric_limits<A>::infinity();
  for (std::int64_t j = end; j < whole; ++j) scores[j] = -std::numeric_limits<A>::infinity();
  return whole;
}

// The largest of `whole` scores, a whole number of vectors.
template <class A>
A largest(const A* scores, std::int64_t whole) {
  A lane[vector_length];
  std::copy(scores, scores + vector_length, lane);
  for (std::int64_t j = vector_length; j < whole; j += vector_length)
    for (std::int64_t l = 0; l < vector_length; ++l) lane[l] = std::max(lane[l], scores[j + l]);
  for (std::int64_t width = vector_length / 2; width > 0; width /= 2)
    for (std::int64_t l = 0; l < width; ++l) lane[l] = std::max(lane[l], lane[l + width]);
  return lane[0];
}

// Rows of `to` = factor times rows of fp32 (fp64) sums, rounded once.
template <class T, class A>
void write_rows(T* to, std::int64_t distance, const A* sums, std::int64_t rows, std::int64_t dim, A factor) {
  for (std::int64_t r = 0; r < rows; ++r)
    Row().each(dim, [=](std::int64_t d) { to[r * distance + d] = static_cast<T>(sums[r * dim + d] * factor); });
}

template <class T>
struct Forward {
  using A = Accumulator<T>;
  HeadOffsets at;
  const T* qkv;
  T* out;
  A* lse;
  Tensor scores, weights, sums;  // scratch of all lanes
  const Products<T>* products;

  // Forward of one block of queries of one head.
  void operator()(const Block& whole, std::int64_t sequence, std::int64_t head, int lane) const {
    const Block block = at.in(sequence, whole);
    A* const s = lane_of<A>(scores, lane);
    T* const w = lane_of<T>(weights, lane);
    A* const o = lane_of<A>(sums, lane);
    const T* const q = qkv + at.query(sequence, head) + block.row * at.columns;
    const T* const k = qkv + at.key(sequence, at.group_of(head));
    const T* const v = qkv + at.value(sequence, at.group_of(head));
    each_strip(block, [&](const Strip& strip) {
      products->scores(block, strip, at.columns).run(s + strip.key, q, k + strip.key * at.columns, nullptr, lane);
    });
    A shift[block_rows], total[block_rows];
    for (std::int64_t r = 0; r < block.rows; ++r) total[r] = exponentials(block, sequence, r, s, w, shift[r]);
    A* const l = lse + at.lse(sequence, head) + block.row;
    Row().each(block.rows, [&](std::int64_t r) { l[r] = shift[r] + log_of(total[r]); });
    each_strip(block, [&](const Strip& strip) {
      products->weighted(block, strip).run(o, w + strip.key, v + strip.key * at.columns, nullptr, lane);
    });
    T* const y = out + at.out(sequence, head) + block.row * at.out_columns();
    for (std::int64_t r = 0; r < block.rows; ++r)
      write_rows(y + r * at.out_columns(), 0, o + r * at.dim, 1, at.dim, 1 / total[r]);
  }

  // Row r of the block: scores s become e^(scale s - shift); `w` gets them rounded, with zeros for masked keys. Returns
  // their sum.
  A exponentials(const Block& block, std::int64_t sequence, std::int64_t r, A* s, T* w, A& shift) const {
    const std::int64_t distance = scores.shape[2];
    s += r * distance + block.first;
    w += r * distance + block.first;
    const std::int64_t row_of = block.row + r, from = at.first_key(sequence, row_of) - block.first;
    const std::int64_t whole = mask(s, from, row_of + 1 - block.first);
    const A scale = at.scale<A>(), by = scale * largest(s, whole);
    const Row row;
    row.each(whole, [=](std::int64_t j) { s[j] = exp_of(scale * s[j] - by); });
    if constexpr (!std::is_same_v<T, A>) row.each(whole, [=](std::int64_t j) { w[j] = static_cast<T>(s[j]); });
    const A sum = row.sum<A>(whole, [=](std::int64_t j) { return s[j]; });
    row.each(block.keys() - block.first - whole, [=](std::int64_t j) { w[whole + j] = T(0.0f); });
    shift = by;
    return sum;
  }
};

template <class T>
struct Backward {
  using A = Accumulator<T>;
  HeadOffsets at;
  T* dqkv;
  const T *dout, *qkv, *out;
  const A* lse;
  Tensor scores, dscores, weights, dweights, dq, dk, dv;  // scratch of all lanes
  const Products<T>* products;

  // Begins the sums of one key head; returns the beta of the first block's contribution. The last block of queries,
  // which comes first, sees every key unless documents are apart.
  float begin(int lane) const {
    if (at.positions == nullptr) return 0;
    for (A* const sum : {lane_of<A>(dk, lane), lane_of<A>(dv, lane)}) std::fill(sum, sum + at.length * at.dim, A(0));
    return 1;
  }

  // Backward of one block of queries, for all heads that share a key head. beta 0: this block is the first to add to
  // its lane's dk and dv.
  void operator()(const Block& whole, std::int64_t sequence, std::int64_t group, float beta, int lane) const {
    const Block block = at.in(sequence, whole);
    const std::int64_t heads = at.heads / at.groups;
    for (std::int64_t head = group * heads; head < (group + 1) * heads; ++head, beta = 1) {
      const T* const q = qkv + at.query(sequence, head) + block.row * at.columns;
      const T* const dy = dout + at.out(sequence, head) + block.row * at.out_columns();
      A delta[block_rows];
      for (std::int64_t r = 0; r < block.rows; ++r) delta[r] = dot(dy, out + (dy - dout), r);
      each_strip(block, [&](const Strip& strip) {
        const T* const k = qkv + at.key(sequence, group) + strip.key * at.columns;
        const T* const v = qkv + at.value(sequence, group) + strip.key * at.columns;
        products->scores(block, strip, at.columns).run(lane_of<A>(scores, lane), q, k, nullptr, lane);
        products->scores(block, strip, at.out_columns()).run(lane_of<A>(dscores, lane), dy, v, nullptr, lane);
        for (std::int64_t r = 0; r < block.rows; ++r)
          differentiate(block, strip, sequence, r, lse[at.lse(sequence, head) + block.row + r], delta[r], lane);
        const T* const p = lane_of<T>(weights, lane);
        const T* const ds = lane_of<T>(dweights, lane);
        const std::int64_t first = strip.key * at.dim;
        products->transposed(block, strip, at.out_columns(), beta)
            .run(lane_of<A>(dv, lane) + first, p, dy, nullptr, lane);
        products->transposed(block, strip, at.columns, beta).run(lane_of<A>(dk, lane) + first, ds, q, nullptr, lane);
        products->weighted(block, strip).run(lane_of<A>(dq, lane), ds, k, nullptr, lane);
      });
      write_rows(dqkv + (q - qkv), at.columns, lane_of<A>(dq, lane), block.rows, at.dim, at.scale<A>());
    }
  }

  // Stores the complete gradients of one key head.
  void finish(std::int64_t sequence, std::int64_t group, int lane) const {
    write_rows(dqkv + at.key(sequence, group), at.columns, lane_of<A>(dk, lane), at.length, at.dim, at.scale<A>());
    write_rows(dqkv + at.value(sequence, group), at.columns, lane_of<A>(dv, lane), at.length, at.dim, A(1));
  }

  // sum_j p_j dp_j of a row (delta). It equals the product of the row's output with the output's gradient.
  A dot(const T* dy, const T* y, std::int64_t r) const {
    const std::int64_t begin = r * at.out_columns();
    return Row().sum<A>(at.dim,
                        [=](std::int64_t d) { return static_cast<A>(dy[begin + d]) * static_cast<A>(y[begin + d]); });
  }

  // Row r: p = e^(scale s - lse), ds = p (dp - delta), zeros for masked keys. The factor `scale` of ds is applied
  // later, to the sums over ds.
  void differentiate(const Block& block, const Strip& strip, std::int64_t sequence, std::int64_t r, A row_lse, A delta,
                     int lane) const {
    const std::int64_t begin = r * scores.shape[2];
    const std::int64_t seen = std::clamp(block.row + r + 1 - strip.key, std::int64_t{0}, strip.keys);
    const std::int64_t from =
        std::clamp(at.first_key(sequence, block.row + r) - strip.key, std::int64_t{0}, seen);
    const A scale = at.scale<A>();
    A* const s = lane_of<A>(scores, lane) + begin;
    const A* const dp = lane_of<A>(dscores, lane) + begin;
    T* const w = lane_of<T>(weights, lane) + begin;
    T* const dw = lane_of<T>(dweights, lane) + begin;
    const std::int64_t whole = mask(s, from, seen);
    Row().each(whole, [=](std::int64_t j) {
      const A p = exp_of(scale * s[j] - row_lse);
      w[j] = static_cast<T>(p);
      dw[j] = static_cast<T>(p * (dp[j] - delta));
    });
    Row().each(strip.keys - whole, [=](std::int64_t j) { w[whole + j] = dw[whole + j] = T(0.0f); });
  }
};

// Number of blocks of queries in a sequence.
std::int64_t blocks_of(const HeadOffsets& at) { return ceil_div(at.length, block_rows); }
Block block_at(const HeadOffsets& at, std::int64_t index) {
  return {index * block_rows, std::min(block_rows, at.length - index * block_rows)};
}

// Calls f(block, task, lane) for all blocks of all tasks: of a task on one lane, the last block first. A launch has as
// many as progress() allows. `operations`: of the longest call.
template <class F>
void each_block(Stream& stream, const char* name, const HeadOffsets& at, std::int64_t tasks, int lanes,
                double operations, const F& f) {
  const std::int64_t blocks = blocks_of(at), turns = ceil_div(tasks, lanes) * blocks;
  const auto together = static_cast<std::int64_t>(std::max(1.0, gemm::operations_of_call / (operations * lanes)));
  for (std::int64_t first = 0; first < turns; first += together)
    launch(stream, name, lanes, [=](std::int64_t lane) {
      for (std::int64_t turn = first; turn < std::min(turns, first + together); ++turn)
        if (const std::int64_t task = turn / blocks * lanes + lane; task < tasks)
          f(block_at(at, blocks - 1 - turn % blocks), task, static_cast<int>(lane));
    });
}

// Operations of a product of a block of queries with all keys of a sequence.
double operations_of_product(const HeadOffsets& at) {
  return 2.0 * static_cast<double>(block_rows) * static_cast<double>(at.length) * static_cast<double>(at.dim);
}

template <class T>
void forward_as(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass) {
  using A = Accumulator<T>;
  const HeadOffsets at(shape, pass.positions);
  const std::int64_t tasks = shape.sequences * at.heads, distance = padded(at.length);
  const int lanes = lanes_of(tasks);
  const Tensor scores = arena.temp(dtype_of<A>, {lanes, block_rows, distance});
  const Tensor weights = std::is_same_v<T, A> ? scores : arena.temp(dtype_of<T>, {lanes, block_rows, distance});
  const Tensor sums = arena.temp(dtype_of<A>, {lanes, block_rows, at.dim});

  const Products<T> products(stream.library<Plans>(), at, distance, lanes);
  const Forward<T> head{at,     pass.qkv.as<T>(), pass.out.as<T>(), pass.lse.as<A>(), scores,
                        weights, sums,           &products};
  for (std::int64_t b = 0; b < blocks_of(at); ++b) {
    each_kind_of_strip(at, block_at(at, b), [&](const Block& block, const Strip& strip) {
      products.scores(block, strip, at.columns);
      products.weighted(block, strip);
    });
  }
  if (stream.dry()) return;
  each_block(
      stream, "attention_forward", at, tasks, lanes, 2 * operations_of_product(at),
      [=](const Block& block, std::int64_t task, int lane) { head(block, task / at.heads, task % at.heads, lane); });
}

template <class T>
void plan_backward(const Products<T>& products, const HeadOffsets& at) {
  for (std::int64_t b = 0; b < blocks_of(at); ++b)
    each_kind_of_strip(at, block_at(at, b), [&](const Block& block, const Strip& strip) {
      for (std::int64_t columns : {at.columns, at.out_columns()}) {
        products.scores(block, strip, columns);
        for (float beta : {0.0f, 1.0f}) products.transposed(block, strip, columns, beta);
      }
      products.weighted(block, strip);
    });
}

template <class T>
void backward_as(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass,
                 const Tensor& dqkv, const Tensor& dout) {
  using A = Accumulator<T>;
  const auto& [out, lse, qkv, positions] = pass;
  const HeadOffsets at(shape, positions);
  const std::int64_t tasks = shape.sequences * at.groups, distance = padded(std::min(at.length, strip_keys));
  const int lanes = lanes_of(tasks);
  const auto scratch = [&](DType type, std::int64_t rows, std::int64_t columns) {
    return arena.temp(type, {lanes, rows, columns});
  };
  constexpr DType sum = dtype_of<A>, type = dtype_of<T>;
  const Tensor scores = scratch(sum, block_rows, distance), dscores = scratch(sum, block_rows, distance);
  const Tensor weights = type == sum ? scores : scratch(type, block_rows, distance);
  const Tensor dweights = type == sum ? dscores : scratch(type, block_rows, distance);
  const Tensor dq = scratch(sum, block_rows, at.dim), dk = scratch(sum, at.length, at.dim),
               dv = scratch(sum, at.length, at.dim);

  const Products<T> products(stream.library<Plans>(), at, distance, lanes);
  plan_backward(products, at);
  if (stream.dry()) return;
  const Backward<T> heads{at,      dqkv.as<T>(), dout.as<T>(), qkv.as<T>(), out.as<T>(), lse.as<A>(), scores,
                          dscores, weights,      dweights,     dq,          dk,          dv,          &products};
  const double products_of_group = 5.0 * static_cast<double>(at.heads / at.groups);
  each_block(stream, "attention_backward", at, tasks, lanes, products_of_group * operations_of_product(at),
             [=](const Block& block, std::int64_t task, int lane) {
               const std::int64_t sequence = task / at.groups, group = task % at.groups;
               heads(block, sequence, group, block.keys() == at.length ? heads.begin(lane) : 1, lane);
               if (block.row == 0) heads.finish(sequence, group, lane);
             });
}

}  // namespace

void forward(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass) {
  const Arena::Frame frame(arena);
  dispatch_real(pass.qkv.type, "attention_forward", [&]<class T>() { forward_as<T>(stream, arena, shape, pass); });
}

void backward(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass,
              const Tensor& dqkv, const Tensor& dout) {
  const Arena::Frame frame(arena);
  dispatch_real(pass.qkv.type, "attention_backward",
                [&]<class T>() { backward_as<T>(stream, arena, shape, pass, dqkv, dout); });
}

}  // namespace tessera::attention

namespace tessera {

std::int64_t most_head_dim() { return std::numeric_limits<std::int64_t>::max(); }

}  // namespace tessera
