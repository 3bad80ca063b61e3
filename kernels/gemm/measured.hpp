#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// Products of which another of the library's candidates is faster than its first, as timed once on one kind of GPU
/// with one version of the library by tests/bench/product_choices. Of these alone they mean anything.
struct Measured {
  bool codes;  ///< factors of FP8 blocks; else bf16
  Form form;   ///< of codes always forward, as they lie
  Epilogue epilogue;
  std::int64_t m, n, k;
  int candidate;  ///< in the library's own order, from 0
};
constexpr const char* measured_gpu = "NVIDIA H200";
constexpr std::size_t measured_library = 130100;  // cublasLtGetVersion()
constexpr Measured measured[] = {
    {false, Form::forward, Epilogue::bias, 0, 0, 0, 0},
};

/// 0 where nothing was measured.
constexpr int candidate_of(const Product& p) {
  const auto same = [&](const Measured& x) {
    return p.type == DType::bf16 && x.codes == p.a.has_value() && x.form == p.form && x.epilogue == p.epilogue &&
           x.m == p.m && x.n == p.n && x.k == p.k;
  };
  const auto* const found = std::find_if(std::begin(measured), std::end(measured), same);
  return found == std::end(measured) ? 0 : found->candidate;
}

}  // namespace tessera::gemm
