#include <dnnl_version.h>
#include <algorithm>
#include <dnnl.hpp>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "kernels/base/error.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/gemm/instructions.hpp"
#include "kernels/gemm/plans.hpp"

namespace tessera::gemm {
namespace {

// A product by oneDNN's brgemm kernels: AMX for bf16 if the CPU has it.
class OneDnnPlan final : public Plan {
 public:
  OneDnnPlan(const Product& p, const Lanes& scratch)
      : description_(describe(p)), biased_(p.biased()), scratch_(scratch) {}

  /// Throws dnnl::error if oneDNN has no such product.
  static dnnl::matmul::primitive_desc describe(const Product& p) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (p.beta != 0) {
      dnnl::post_ops add;
      add.append_sum(p.beta);
      attributes.set_post_ops(add);
    }
    const dnnl::memory::desc a = matrix(p.type, p.m, p.k, p.lda, p.stored_a()),
                             b = matrix(p.type, p.k, p.n, p.ldb, p.stored_b()),
                             c = matrix(p.sum, p.m, p.n, p.ldc, Stored::plain);
    const dnnl::memory::desc bias = p.biased() ? matrix(p.type, 1, p.n, p.n, Stored::plain) : dnnl::memory::desc();
#if DNNL_VERSION_MAJOR >= 3
    return {engine(), a, b, bias, c, attributes};
#else
    return {dnnl::matmul::desc(a, b, bias, c), attributes, engine()};
#endif
  }

  /// Whether a row's bits do not depend on the other rows of the call: where oneDNN computes by brgemm kernels. Single
  /// rows are added up in another order by oneDNN 3 (seen of 3.7 with AVX-512).
  static bool rows_apart(const Product& p) {
    const bool single = DNNL_VERSION_MAJOR >= 3 && p.m == 1;
    return !single && std::string_view(describe(p).impl_info_str()).starts_with("brg");
  }

  std::int64_t scratch_bytes() const override {
    return static_cast<std::int64_t>(description_.scratchpad_desc().get_size());
  }

  void set_lanes(int lanes) override {
    if (calls_.empty()) product_ = dnnl::matmul(description_);
    while (static_cast<int>(calls_.size()) < lanes) {
      Call call{dnnl::stream(engine()), {}};
      const auto name = [&](int argument, const dnnl::memory::desc& d) {
        call.arguments.emplace(argument, dnnl::memory(d, engine(), nullptr));
      };
      name(DNNL_ARG_SRC, description_.src_desc());
      name(DNNL_ARG_WEIGHTS, description_.weights_desc());
      name(DNNL_ARG_DST, description_.dst_desc());
      if (biased_) name(DNNL_ARG_BIAS, description_.bias_desc());
      if (scratch_bytes() > 0) name(DNNL_ARG_SCRATCHPAD, description_.scratchpad_desc());
      calls_.push_back(std::move(call));
    }
  }

  void run(void* c, const void* a, const void* b, const void* bias, int lane) override {
    Call& call = calls_[static_cast<std::size_t>(lane)];
    const auto point = [&](int argument, const void* data) {
      call.arguments.at(argument).set_data_handle(const_cast<void*>(data));
    };
    point(DNNL_ARG_SRC, a);
    point(DNNL_ARG_WEIGHTS, b);
    point(DNNL_ARG_DST, c);
    if (biased_) point(DNNL_ARG_BIAS, bias);
    if (scratch_bytes() > 0) point(DNNL_ARG_SCRATCHPAD, scratch_.lane(lane));
    Runtime::require_threads();
    product_.execute(call.stream, call.arguments);
    call.stream.wait();
  }

 private:
  struct Call {
    dnnl::stream stream;
    std::unordered_map<int, dnnl::memory> arguments;
  };

  static const dnnl::engine& engine() {
    static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
    return cpu;
  }
  static dnnl::memory::desc matrix(DType type, std::int64_t rows, std::int64_t columns, std::int64_t distance,
                                   Stored stored) {
    const auto t = type == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
    const bool plain = stored == Stored::plain;
    return {{rows, columns}, t, plain ? dnnl::memory::dims{distance, 1} : dnnl::memory::dims{1, distance}};
  }
  dnnl::matmul::primitive_desc description_;
  bool biased_;
  dnnl::matmul product_;  ///< its code is generated with the first lane
  const Lanes& scratch_;
  std::vector<Call> calls_;
};

constexpr std::int64_t alignment = 256;

// Offsets of row r of a, and of column c of b, in elements.
std::int64_t row_of_a(const Product& p, std::int64_t r) { return p.stored_a() == Stored::plain ? r * p.lda : r; }
std::int64_t column_of_b(const Product& p, std::int64_t c) { return p.stored_b() == Stored::plain ? c : c * p.ldb; }

// A factor as it lies in memory: `count` lines of `length` elements, `distance` apart.
struct Lines {
  std::int64_t count, length, distance;
};
Lines lines_of_a(const Product& p) {
  return p.stored_a() == Stored::plain ? Lines{p.m, p.k, p.lda} : Lines{p.k, p.m, p.lda};
}
Lines lines_of_b(const Product& p) {
  return p.stored_b() == Stored::plain ? Lines{p.k, p.n, p.ldb} : Lines{p.n, p.k, p.ldb};
}
template <class T>
void widen(float* to, const T* from, std::int64_t n) {
  for (std::int64_t j = 0; j < n; ++j) to[j] = static_cast<float>(from[j]);
}
// Widens line i of a factor of type T to fp32.
template <class T>
void widen_line(float* to, const void* factor, const Lines& lines, std::int64_t i) {
  widen(to, static_cast<const T*>(factor) + i * lines.distance, lines.length);
}

// The same product on factors widened to fp32.
Product widened(Product p) {
  p.type = DType::f32;
  p.lda = lines_of_a(p).length;
  p.ldb = lines_of_b(p).length;
  if (p.sum == DType::bf16) p.ldc = p.n;
  p.sum = DType::f32;
  return p;
}
void require_one_rounding(const Product& p) {
  require(p.sum == DType::f32 || p.beta == 0, "gemm", "a sum that goes on must be kept in fp32");
}

// A product of bf16 on a CPU without bf16 instructions, called from a parallel region. Factors are widened to fp32,
// multiplied by oneDNN, and the sum is rounded once.
class WideningPlan final : public Plan {
 public:
  WideningPlan(const Product& p, const Lanes& scratch) : p_(p), sum_(widened(p), scratch), scratch_(scratch) {
    require_one_rounding(p);
  }

  std::int64_t scratch_bytes() const override {
    return own_begin() + (p_.m * p_.k + p_.k * p_.n + p_.n + (rounds() ? p_.m * p_.n : 0)) * size_of(DType::f32);
  }
  void set_lanes(int lanes) override { sum_.set_lanes(lanes); }

  void run(void* c, const void* a, const void* b, const void* bias, int lane) override {
    auto* const wide_a = reinterpret_cast<float*>(scratch_.lane(lane) + own_begin());
    float* const wide_b = wide_a + p_.m * p_.k;
    float* const wide_bias = wide_b + p_.k * p_.n;
    float* const sum = wide_bias + p_.n;
    const Lines of_a = lines_of_a(p_), of_b = lines_of_b(p_);
    for (std::int64_t i = 0; i < of_a.count; ++i) widen_line<bf16>(wide_a + i * of_a.length, a, of_a, i);
    for (std::int64_t i = 0; i < of_b.count; ++i) widen_line<bf16>(wide_b + i * of_b.length, b, of_b, i);
    if (bias) widen(wide_bias, static_cast<const bf16*>(bias), p_.n);
    sum_.run(rounds() ? sum : c, wide_a, wide_b, bias ? wide_bias : nullptr, lane);
    if (!rounds()) return;
    for (std::int64_t i = 0; i < p_.m; ++i)
      for (std::int64_t j = 0; j < p_.n; ++j) static_cast<bf16*>(c)[i * p_.ldc + j] = bf16(sum[i * p_.n + j]);
  }

 private:
  bool rounds() const { return p_.sum == DType::bf16; }
  std::int64_t own_begin() const { return round_up(sum_.scratch_bytes(), alignment); }

  Product p_;
  OneDnnPlan sum_;
  const Lanes& scratch_;
};

// Sizes at which oneDNN without brgemm kernels is reproducible. Elsewhere a row's bits depend on the number of rows of
// the call and on how its threads share them. They do not for multiples of 12 rows, at most 264, on one thread (seen of
// 2.6 at SSE4.1, AVX and AVX2).
constexpr std::int64_t dozen = 12, most_rows = 240;

// A factor copied to fp32 for BlocksPlan, unless it can be read where it lies.
struct FactorCopy {
  Lines lines;                   // as the factor lies
  std::int64_t count, distance;  // of the copy's lines, padding and gaps included
  bool made;

  // `across`: whether the summed dimension runs across lines. Then lines a multiple of 1 KiB apart, as usual sizes have
  // them, share few places of a cache, and oneDNN takes twice the time. The copy leaves a gap between them.
  FactorCopy(const Lines& of, DType type, std::int64_t padded, bool across)
      : lines(of),
        count(padded),
        distance(of.length + (across ? gap : 0)),
        made(type != DType::f32 || padded != of.count || (across && of.distance % crowded == 0)) {}
  std::int64_t elements() const { return made ? count * distance : 0; }

 private:
  static constexpr std::int64_t gap = 16, crowded = 256;
};

// A product cut into blocks, each a call of oneDNN on one thread; rows are padded with zeros to multiples of 12. Serves
// fp32 without brgemm kernels, and bf16 without bf16 instructions: its factors are widened to fp32 and its sum is
// rounded once, on all threads.
class BlocksPlan final : public Plan {
 public:
  BlocksPlan(const Product& p, const Lanes& scratch, Stream& stream)
      : p_(p),
        rows_(p.stored_a() == Stored::plain ? round_up(p.m, dozen) : p.m),
        a_(lines_of_a(p), p.type, p.stored_a() == Stored::plain ? rows_ : p.k, p.stored_a() == Stored::transposed),
        b_(lines_of_b(p), p.type, lines_of_b(p).count, p.stored_b() == Stored::plain),
        stream_(stream) {
    require_one_rounding(p);
    // Threads share rows if these suffice, else columns too: each block packs both its factors.
    const std::int64_t threads = Runtime::threads(), fewest = ceil_div(rows_, most_rows),
                       even = round_up(fewest, threads), down = rows_ / even < least_rows ? fewest : even,
                       across = threads / std::gcd(down, threads);
    height_ = std::min(rows_, round_up(ceil_div(rows_, down), dozen));
    columns_ = std::min(p.n, std::max(least_columns, round_up(ceil_div(p.n, across), column_step)));
    across_ = ceil_div(p.n, columns_);
    for (std::int64_t i = 0; i < blocks(); ++i) {
      const Product call = call_of(block(i));
      if (!calls_.contains(call)) calls_.emplace(call, std::make_unique<OneDnnPlan>(call, scratch));
    }
    workspace();
  }

  std::int64_t scratch_bytes() const override {
    std::int64_t most = 0;
    for (const auto& [call, plan] : calls_) most = std::max(most, plan->scratch_bytes());
    return most;
  }
  int lanes() const override { return static_cast<int>(blocks()); }
  void set_lanes(int lanes) override {
    for (auto& [call, plan] : calls_) plan->set_lanes(lanes);
  }

  void run(void* c, const void* a, const void* b, const void* bias, int) override {
    const Buffers own = workspace();
    if (wide() && bias) widen(own.bias, static_cast<const bf16*>(bias), p_.n);
    copy({own.a, a, a_}, {own.b, b, b_});
    const Inputs from{a_.made ? own.a : static_cast<const float*>(a), b_.made ? own.b : static_cast<const float*>(b),
                      wide() && bias ? own.bias : static_cast<const float*>(bias)};
    run_range(stream_, "gemm_blocks", 0, blocks(), [=, this](std::int64_t i) { run_block(i, c, own.sum, from); });
  }

 private:
  static constexpr std::int64_t column_step = 16, least_columns = 64, least_rows = 96;

  struct Block {
    std::int64_t row, column, rows, columns;
  };
  struct Buffers {  // in the workspace; `sum` where sums are not written to c at once
    float *a, *b, *bias, *sum;
  };
  struct Inputs {
    const float *a, *b, *bias;
  };

  bool wide() const { return p_.type == DType::bf16; }
  bool copies_c() const { return p_.sum == DType::bf16 || rows_ != p_.m; }
  std::int64_t blocks() const { return across_ * ceil_div(rows_, height_); }
  Block block(std::int64_t i) const {
    const std::int64_t row = i / across_ * height_, column = i % across_ * columns_;
    return {row, column, std::min(height_, rows_ - row), std::min(columns_, p_.n - column)};
  }
  /// The whole product as its blocks compute it: on widened and copied factors.
  Product inner() const {
    Product p = wide() ? widened(p_) : p_;
    if (a_.made) p.lda = a_.distance;
    if (b_.made) p.ldb = b_.distance;
    if (copies_c()) p.ldc = p_.n;
    return p;
  }
  Product call_of(const Block& block) const {
    Product p = inner();
    p.m = block.rows;
    p.n = block.columns;
    return p;
  }

  Buffers workspace() {
    const std::int64_t a = a_.elements(), b = b_.elements(), bias = wide() ? p_.n : 0,
                       sum = copies_c() ? rows_ * p_.n : 0;
    auto* const begin = reinterpret_cast<float*>(
        stream_.workspace("padded and widened factors", (a + b + bias + sum) * size_of(DType::f32)));
    return {begin, begin + a, begin + a + b, begin + a + b + bias};
  }

  struct Copied {
    float* to;
    const void* from;
    const FactorCopy& as;
    std::int64_t lines() const { return as.made ? as.lines.count : 0; }
  };

  /// Copies those factors that must be, in one parallel region; padding is zero.
  void copy(const Copied& a, const Copied& b) {
    const std::int64_t lines = a.lines(), all = lines + b.lines();
    const auto line = [wide = wide()](const Copied& factor, std::int64_t i) {
      float* const to = factor.to + i * factor.as.distance;
      wide ? widen_line<bf16>(to, factor.from, factor.as.lines, i)
           : widen_line<float>(to, factor.from, factor.as.lines, i);
    };
    if (all > 0)
      run_range(stream_, "gemm_copy", 0, all, [&](std::int64_t i) { i < lines ? line(a, i) : line(b, i - lines); });
    for (const Copied& factor : {a, b})
      std::fill(factor.to + factor.lines() * factor.as.distance, factor.to + factor.as.elements(), 0.0f);
  }

  void run_block(std::int64_t i, void* c, float* sum, const Inputs& from) {
    const Block at = block(i);
    const Product p = inner();
    float* const to = (copies_c() ? sum : static_cast<float*>(c)) + at.row * p.ldc + at.column;
    const std::int64_t real = std::min(at.rows, p_.m - at.row);  // without padding
    const std::int64_t place = at.row * p_.ldc + at.column;
    if (copies_c() && p_.beta != 0)
      for (std::int64_t r = 0; r < real; ++r)
        widen(to + r * p.ldc, static_cast<const float*>(c) + place + r * p_.ldc, at.columns);
    calls_.at(call_of(at))
        ->run(to, from.a + row_of_a(p, at.row), from.b + column_of_b(p, at.column),
              from.bias ? from.bias + at.column : nullptr, static_cast<int>(i));
    if (!copies_c()) return;
    for (std::int64_t r = 0; r < real; ++r) {
      const float* const row = to + r * p.ldc;
      const std::int64_t out = place + r * p_.ldc;
      if (p_.sum == DType::bf16)
        for (std::int64_t j = 0; j < at.columns; ++j) static_cast<bf16*>(c)[out + j] = bf16(row[j]);
      else
        widen(static_cast<float*>(c) + out, row, at.columns);
    }
  }

  Product p_;
  std::int64_t rows_;  ///< padding included
  FactorCopy a_, b_;
  Stream& stream_;
  std::int64_t columns_, height_, across_;  ///< of a block; `across`: number of blocks side by side
  std::map<Product, std::unique_ptr<OneDnnPlan>> calls_;
};

// fp64 by plain loops: oneDNN has no fp64, and only finite-difference tests use it.
class DoublePlan final : public Plan {
 public:
  explicit DoublePlan(const Product& p) : p_(p) {}

  void run(void* c, const void* a, const void* b, const void* bias, int) override {
    const auto *const x = static_cast<const double*>(a), *const y = static_cast<const double*>(b);
    const bool plain_a = p_.stored_a() == Stored::plain, plain_b = p_.stored_b() == Stored::plain;
    const std::int64_t ai = plain_a ? p_.lda : 1, ap = plain_a ? 1 : p_.lda;
    const std::int64_t bp = plain_b ? p_.ldb : 1, bj = plain_b ? 1 : p_.ldb;
    for (std::int64_t i = 0; i < p_.m; ++i) {
      double* const row = static_cast<double*>(c) + i * p_.ldc;
      for (std::int64_t j = 0; j < p_.n; ++j) {
        const double before = p_.beta == 0 ? 0 : static_cast<double>(p_.beta) * row[j];
        row[j] = before + (bias ? static_cast<const double*>(bias)[j] : 0);
      }
      for (std::int64_t p = 0; p < p_.k; ++p)
        for (std::int64_t j = 0; j < p_.n; ++j) row[j] += x[i * ai + p * ap] * y[p * bp + j * bj];
    }
  }

 private:
  Product p_;
};

// Whether oneDNN has kernels for this type that need nothing added here.
bool serves(DType type) {
  const Product any{.type = type, .sum = DType::f32, .m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64};
  try {
    return OneDnnPlan::rows_apart(any);
  } catch (const dnnl::error&) {
    return false;
  }
}
bool library_serves(DType type) {
  static const bool fp32 = serves(DType::f32), bf16 = serves(DType::bf16);
  return type == DType::bf16 ? bf16 : fp32;
}

std::unique_ptr<Plan> make(const Product& p, bool in_lanes, const Lanes& scratch, Stream& stream) {
  if (p.type == DType::f64) return std::make_unique<DoublePlan>(p);
  const bool wide = p.type == DType::bf16 && !library_serves(DType::bf16);
  if (in_lanes && wide) return std::make_unique<WideningPlan>(p, scratch);
  // Sums over rows (a transposed) are exempt from the condition: their result has no row that belongs to one row of the
  // call.
  const bool exempt = p.stored_a() == Stored::transposed && library_serves(p.type);
  if (in_lanes || (!wide && (exempt || OneDnnPlan::rows_apart(p)))) return std::make_unique<OneDnnPlan>(p, scratch);
  return std::make_unique<BlocksPlan>(p, scratch, stream);
}

}  // namespace

void Lanes::reserve(int lanes, std::int64_t bytes) {
  lanes_ = std::max(lanes_, lanes);
  stride_ = std::max(stride_, round_up(bytes, alignment));
  memory_ = stream_.workspace("library scratch", lanes_ * stride_);
}

Plan& Plans::plan(const Product& product, int lanes) {
  Entry& entry = entries_[{product, lanes > 0}];
  if (entry.plan && entry.lanes >= lanes) return *entry.plan;
  if (!entry.plan) entry.plan = make(product, lanes > 0, scratch_, stream_);
  entry.lanes = std::max(lanes, entry.plan->lanes());
  scratch_.reserve(entry.lanes, entry.plan->scratch_bytes());
  if (!stream_.dry()) entry.plan->set_lanes(entry.lanes);
  return *entry.plan;
}

bool has_instructions(DType type) { return type != DType::bf16 || library_serves(type); }

std::int64_t rows_of_call(const Product& whole) {
  // Several blocks: what they share is widened once.
  if (!library_serves(whole.type)) return (whole.stored_a() == Stored::plain ? 4 : 8) * most_rows;
  // A transposed factor reaches oneDNN's AMX kernels only if all its columns are used: 1.2 times as fast.
  return whole.stored_a() == Stored::plain ? 256 : 4096;
}

std::span<const std::int64_t> row_chunks(DType type) {
  static constexpr std::int64_t chunks[] = {256, 128, 64, 32}, dozens[] = {most_rows, 120, 60, 36};
  return library_serves(type) ? chunks : dozens;
}

}  // namespace tessera::gemm
