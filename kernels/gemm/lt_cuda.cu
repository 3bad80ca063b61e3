#include "kernels/gemm/lt.hpp"

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/gemm/lt_description.cuh"
#include "kernels/gemm/measured.hpp"

namespace tessera::gemm {
namespace {

using lt::check;
using Preference = lt::Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

constexpr auto workspace_bytes = static_cast<std::size_t>(LtPlans::workspace_bytes);

/// Alignments of a, b, c and aux: the powers of two, at most 256, that divide their addresses.
using Alignments = std::array<std::uint32_t, 4>;

std::uint32_t alignment_of(const void* place) {
  const auto address = reinterpret_cast<std::uintptr_t>(place) | 256u;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

Alignments alignments_of(const LtPlaces& at) {
  return {alignment_of(at.a), alignment_of(at.b), alignment_of(at.c), alignment_of(at.aux)};
}

using Words = LibraryChoices::Words;

Words words_of(const Product& p, const Alignments& at) {
  const auto word = [](auto value) { return static_cast<std::uint64_t>(value); };
  const auto codes = [](const std::optional<FormatId>& f) { return f ? std::uint64_t(*f) + 1 : std::uint64_t{0}; };
  return {word(p.type) | codes(p.a) << 8 | codes(p.b) << 16, word(p.sum), word(p.stored_a()), word(p.stored_b()),
          word(p.epilogue) | word(p.scaled) << 8, word(p.m), word(p.n), word(p.k),
          word(p.lda), word(p.ldb), word(p.ldc), std::bit_cast<std::uint32_t>(p.beta),
          at[0], at[1], at[2], at[3]};
}

std::pair<Product, Alignments> read_words(const Words& w) {
  require(w.size() == 16, "LtPlans", "was asked for a product that it does not know");
  const auto size = [&](std::size_t i) { return static_cast<std::int64_t>(w[i]); };
  const auto half = [&](std::size_t i) { return static_cast<std::uint32_t>(w[i]); };
  const auto codes = [&](int shift) -> std::optional<FormatId> {
    const std::uint64_t code = w[0] >> shift & 0xFF;
    return code == 0 ? std::nullopt : std::optional(FormatId(code - 1));
  };
  Product p{.type = DType(w[0] & 0xFF), .sum = DType(w[1]), .form = Form::input_gradient,
            .a = codes(8), .b = codes(16), .epilogue = Epilogue(w[4] & 0xFF)};
  p.scaled = w[4] >> 8 != 0;
  if (Stored(w[2]) == Stored::transposed) p.form = Form::weight_gradient;
  if (Stored(w[3]) == Stored::transposed) p.form = Form::forward;
  p.m = size(5), p.n = size(6), p.k = size(7);
  p.lda = size(8), p.ldb = size(9), p.ldc = size(10);
  p.beta = std::bit_cast<float>(half(11));
  return {p, {half(12), half(13), half(14), half(15)}};
}

/// Whether the rows of measured.hpp were measured on this kind of GPU with this version of the library.
bool measured_here() {
  static const bool here = [] {
    int device = 0;
    cudaDeviceProp properties{};
    return cublasLtGetVersion() == measured_library && cudaGetDevice(&device) == cudaSuccess &&
           cudaGetDeviceProperties(&properties, device) == cudaSuccess &&
           std::string_view(properties.name) == measured_gpu;
  }();
  return here;
}

/// One product as cuBLASLt wants it described, and its algorithm: `preferred` if the library accepts that.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const Product& p, const Alignments& alignments, const Words& preferred)
      : of_(p), wide_(p.type == DType::f64), scaled_(p.scaled), beta_(p.beta) {
    exists_ = accept(handle, preferred) || choose(handle, p, alignments);
  }

  bool exists() const { return exists_; }
  /// The algorithm; empty if the library has no such product.
  Words words() const {
    return exists_ ? Words(std::begin(algorithm_.data), std::end(algorithm_.data)) : Words();
  }

  void run(cublasLtHandle_t handle, void* workspace, cudaStream_t stream, const LtPlaces& at) {
    of_.place(at);
    const double one64 = 1, beta64 = beta_;
    const float one32 = 1;
    const void* const alpha = scaled_ ? at.alpha : wide_ ? static_cast<const void*>(&one64) : &one32;
    const void* const beta = scaled_ ? at.beta : wide_ ? static_cast<const void*>(&beta64) : &beta_;
    check(cublasLtMatmul(handle, of_.product(), alpha, at.b, of_.b(), at.a, of_.a(), beta, at.c, of_.c(), at.c, of_.c(),
                         &algorithm_, workspace, workspace_bytes, stream),
          "cublasLtMatmul");
  }

 private:
  template <class T>
  static void prefer(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  }

  bool accept(cublasLtHandle_t handle, const Words& preferred) {
    if (preferred.size() != std::size(algorithm_.data)) return false;
    std::copy(preferred.begin(), preferred.end(), algorithm_.data);
    cublasLtMatmulHeuristicResult_t checked{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, of_.product(), of_.b(), of_.a(), of_.c(), of_.c(),
                                                          &algorithm_, &checked);
    return status == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= workspace_bytes;
  }

  /// Takes the candidate of measured.hpp, the last one where the library offers fewer; else the first.
  bool choose(cublasLtHandle_t handle, const Product& p, const Alignments& alignments) {
    const auto wide = [](std::uint32_t alignment) { return alignment >= 16; };
    const bool measured = std::all_of(alignments.begin(), alignments.end(), wide) && measured_here();
    const std::vector<Words> found = candidates(handle, alignments, 1 + (measured ? candidate_of(p) : 0));
    if (found.empty()) return false;
    std::copy(found.back().begin(), found.back().end(), algorithm_.data);
    return true;
  }

 public:
  std::vector<Words> candidates(cublasLtHandle_t handle, const Alignments& alignments, int most) {
    cublasLtMatmulPreference_t made = nullptr;
    check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const Preference preference(made);
    prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
    // A split sum is added in fp32 and in order: never in the output's type, never in order of arrival.
    prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[1]);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[0]);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[2]);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[2]);
    cublasLtMatmulHeuristicResult_t results[LtPlans::most_candidates];
    int found = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, of_.product(), of_.b(), of_.a(), of_.c(), of_.c(), preference.get(),
                                       std::min(most, LtPlans::most_candidates), results, &found);
    std::vector<Words> algorithms;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; ++i)
      if (results[i].state == CUBLAS_STATUS_SUCCESS)
        algorithms.emplace_back(std::begin(results[i].algo.data), std::end(results[i].algo.data));
    return algorithms;
  }

 private:
  LtDescription of_;
  bool wide_, scaled_, exists_ = false;
  float beta_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace

struct LtPlans::State {
  cublasLtHandle_t handle = nullptr;
  std::map<std::pair<Product, Alignments>, Plan> plans;
};

LtPlans::LtPlans() : state_(std::make_unique<State>()) {
  check(cublasLtCreate(&state_->handle), "cublasLtCreate");
}

LtPlans::~LtPlans() {
  state_->plans.clear();
  cublasLtDestroy(state_->handle);
}

bool LtPlans::run(void* stream, void* workspace, const Product& product, const LtPlaces& at,
                  const LibraryChoices& choices) {
  const Alignments alignments = alignments_of(at);
  const std::pair key(product, alignments);
  auto known = state_->plans.find(key);
  if (known == state_->plans.end()) {
    const auto chosen = choices.of.find(work(product, at));
    known = state_->plans
                .try_emplace(key, state_->handle, product, alignments,
                             chosen == choices.of.end() ? Words() : chosen->second)
                .first;
  }
  if (!known->second.exists()) return false;
  known->second.run(state_->handle, workspace, static_cast<cudaStream_t>(stream), at);
  return true;
}

Words LtPlans::work(const Product& product, const LtPlaces& places) {
  return words_of(product, alignments_of(places));
}

Words LtPlans::choose(const Words& work, const Words& preferred) {
  const auto [product, alignments] = read_words(work);
  return Plan(state_->handle, product, alignments, preferred).words();
}

Product LtPlans::product_of(const Words& work) { return read_words(work).first; }

std::vector<Words> LtPlans::candidates(const Words& work) {
  const auto [product, alignments] = read_words(work);
  return Plan(state_->handle, product, alignments, {}).candidates(state_->handle, alignments, most_candidates);
}

}  // namespace tessera::gemm
