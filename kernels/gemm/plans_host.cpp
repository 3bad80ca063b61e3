#include <algorithm>
#include <dnnl.hpp>
#include <unordered_map>

#include "kernels/base/error.hpp"
#include "kernels/base/index.hpp"
#include "kernels/gemm/plans.hpp"

namespace tessera::gemm {
namespace {

// oneDNN's brgemm kernels: AMX for bf16 where the CPU has it.
class OneDnnPlan final : public Plan {
 public:
  OneDnnPlan(const Product& p, const Lanes& scratch)
      : description_(describe(p)), biased_(p.biased()), scratch_(scratch) {}

  /// Throws dnnl::error where the library has no such product.
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
    if (!p.biased()) return {dnnl::matmul::desc(a, b, c), attributes, engine()};
    return {dnnl::matmul::desc(a, b, matrix(p.type, 1, p.n, p.n, Stored::plain), c), attributes, engine()};
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
  dnnl::matmul product_;  ///< its code, made with the first lane
  const Lanes& scratch_;
  std::vector<Call> calls_;
};

constexpr std::int64_t alignment = 256;

// bf16 on a CPU without its instructions: factors widened to fp32, the library's product of those, one rounding.
class WideningPlan final : public Plan {
 public:
  WideningPlan(const Product& p, const Lanes& scratch)
      : p_(p), sum_(widened(p), scratch), scratch_(scratch) {
    require(rounds() ? p.beta == 0 : p.sum == DType::f32, "gemm", "a sum that goes on must be kept in fp32");
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
    widen(wide_a, a, rows_of(p_.stored_a(), p_.m, p_.k), p_.m * p_.k, p_.lda);
    widen(wide_b, b, rows_of(p_.stored_b(), p_.k, p_.n), p_.k * p_.n, p_.ldb);
    if (bias) widen(wide_bias, bias, 1, p_.n, p_.n);
    sum_.run(rounds() ? sum : c, wide_a, wide_b, bias ? wide_bias : nullptr, lane);
    if (!rounds()) return;
    for (std::int64_t i = 0; i < p_.m; ++i)
      for (std::int64_t j = 0; j < p_.n; ++j) static_cast<bf16*>(c)[i * p_.ldc + j] = bf16(sum[i * p_.n + j]);
  }

 private:
  static std::int64_t rows_of(Stored stored, std::int64_t rows, std::int64_t columns) {
    return stored == Stored::plain ? rows : columns;
  }
  static Product widened(Product p) {
    p.type = DType::f32;
    p.lda = p.stored_a() == Stored::plain ? p.k : p.m;
    p.ldb = p.stored_b() == Stored::plain ? p.n : p.k;
    if (p.sum == DType::bf16) p.ldc = p.n;
    p.sum = DType::f32;
    return p;
  }
  static void widen(float* to, const void* from, std::int64_t rows, std::int64_t elements, std::int64_t distance) {
    const std::int64_t columns = elements / rows;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        to[i * columns + j] = static_cast<float>(static_cast<const bf16*>(from)[i * distance + j]);
  }
  bool rounds() const { return p_.sum == DType::bf16; }
  std::int64_t own_begin() const { return round_up(sum_.scratch_bytes(), alignment); }

  Product p_;
  OneDnnPlan sum_;
  const Lanes& scratch_;
};

// fp64 serves proofs by finite differences alone; the library has none.
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

bool library_has_bf16() {
  const Product any{.type = DType::bf16, .sum = DType::f32, .m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64};
  try {
    OneDnnPlan::describe(any);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

std::unique_ptr<Plan> make(const Product& product, const Lanes& scratch) {
  static const bool has_bf16 = library_has_bf16();
  if (product.type == DType::f64) return std::make_unique<DoublePlan>(product);
  if (product.type == DType::bf16 && !has_bf16) return std::make_unique<WideningPlan>(product, scratch);
  return std::make_unique<OneDnnPlan>(product, scratch);
}

}  // namespace

void Lanes::reserve(int lanes, std::int64_t bytes) {
  lanes_ = std::max(lanes_, lanes);
  stride_ = std::max(stride_, round_up(bytes, alignment));
  memory_ = stream_.workspace("library scratch", lanes_ * stride_);
}

Plan& Plans::plan(const Product& product, int lanes) {
  Entry& entry = entries_[product];
  if (entry.lanes >= lanes) return *entry.plan;
  if (!entry.plan) entry.plan = make(product, scratch_);
  scratch_.reserve(lanes, entry.plan->scratch_bytes());
  if (!stream_.dry()) entry.plan->set_lanes(lanes);
  entry.lanes = lanes;
  return *entry.plan;
}

}  // namespace tessera::gemm
