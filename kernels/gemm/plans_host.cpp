#include <cstdlib>
#include <dnnl.hpp>
#include <new>
#include <unordered_map>

#include "kernels/base/error.hpp"
#include "kernels/base/index.hpp"
#include "kernels/gemm/panels.hpp"
#include "kernels/gemm/plans.hpp"

namespace tessera::gemm {
namespace {

// oneDNN's brgemm kernels: AMX for bf16 where the CPU has it.
class OneDnnPlan final : public Plan {
 public:
  OneDnnPlan(const Product& p, const std::vector<Buffer>& scratch)
      : a_(matrix(p.type, p.m, p.k, p.lda, p.a)),
        b_(matrix(p.type, p.k, p.n, p.ldb, p.b)),
        c_(matrix(p.sum, p.m, p.n, p.ldc, Stored::plain)),
        bias_(p.bias == Bias::none ? dnnl::memory::desc() : matrix(p.type, 1, p.n, p.n, Stored::plain)),
        description_(describe(p)),
        product_(description_),
        scratch_(scratch) {}

  std::int64_t scratch_bytes() const override {
    return static_cast<std::int64_t>(description_.scratchpad_desc().get_size());
  }

  void set_lanes(int lanes) override {
    while (static_cast<int>(calls_.size()) < lanes) {
      Call call{dnnl::stream(engine()), {}};
      const auto name = [&](int argument, const dnnl::memory::desc& d) {
        call.arguments.emplace(argument, dnnl::memory(d, engine(), nullptr));
      };
      name(DNNL_ARG_SRC, a_);
      name(DNNL_ARG_WEIGHTS, b_);
      name(DNNL_ARG_DST, c_);
      if (!bias_.is_zero()) name(DNNL_ARG_BIAS, bias_);
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
    if (!bias_.is_zero()) point(DNNL_ARG_BIAS, bias);
    if (scratch_bytes() > 0) point(DNNL_ARG_SCRATCHPAD, scratch_[static_cast<std::size_t>(lane)].data());
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
  dnnl::matmul::primitive_desc describe(const Product& p) const {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (p.beta != 0) {
      dnnl::post_ops add;
      add.append_sum(p.beta);
      attributes.set_post_ops(add);
    }
    const auto d = bias_.is_zero() ? dnnl::matmul::desc(a_, b_, c_) : dnnl::matmul::desc(a_, b_, bias_, c_);
    return {d, attributes, engine()};
  }

  dnnl::memory::desc a_, b_, c_, bias_;
  dnnl::matmul::primitive_desc description_;
  dnnl::matmul product_;
  const std::vector<Buffer>& scratch_;
  std::vector<Call> calls_;
};

// All of it by the caller's thread.
class PanelsPlan final : public Plan {
 public:
  PanelsPlan(const Product& p, const std::vector<Buffer>& scratch) : panels_(p), scratch_(scratch) {}

  std::int64_t scratch_bytes() const override { return panels_.bytes(); }

  void run(void* c, const void* a, const void* b, const void* bias, int lane) override {
    std::byte* const packed = scratch_[static_cast<std::size_t>(lane)].data();
    for (std::int64_t i = 0; i < panels_.shares(); ++i) panels_.pack(packed, b, i);
    for (std::int64_t i = 0; i < panels_.bands(); ++i) panels_.multiply(c, a, packed, bias, i);
  }

 private:
  Panels panels_;
  const std::vector<Buffer>& scratch_;
};

std::unique_ptr<Plan> make(const Product& product, const std::vector<Buffer>& scratch) {
  if (!by_library(product.type)) return std::make_unique<PanelsPlan>(product, scratch);
  return std::make_unique<OneDnnPlan>(product, scratch);
}

bool library_has_bf16() {
  const Product any{.type = DType::bf16, .sum = DType::f32, .m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64};
  const std::vector<Buffer> none;
  try {
    const OneDnnPlan made(any, none);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

}  // namespace

bool by_library(DType type) {
  static const bool has_bf16 = library_has_bf16();
  return type == DType::bf16 && has_bf16;
}

std::byte* Buffer::at_least(std::int64_t bytes) {
  constexpr std::int64_t alignment = 256;
  if (bytes > bytes_) {
    bytes_ = round_up(bytes, alignment);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, static_cast<std::size_t>(bytes_))));
    if (!memory_) throw std::bad_alloc();
  }
  return memory_.get();
}
void Buffer::Free::operator()(std::byte* memory) const { std::free(memory); }

Plan& Plans::plan(const Product& product, int lanes) {
  Entry& entry = entries_[product];
  if (entry.lanes >= lanes) return *entry.plan;
  if (!entry.plan) entry.plan = make(product, scratch_);
  entry.plan->set_lanes(lanes);
  if (static_cast<int>(scratch_.size()) < lanes) scratch_.resize(static_cast<std::size_t>(lanes));
  for (int lane = 0; lane < lanes; ++lane)
    scratch_[static_cast<std::size_t>(lane)].at_least(entry.plan->scratch_bytes());
  entry.lanes = lanes;
  return *entry.plan;
}

}  // namespace tessera::gemm
