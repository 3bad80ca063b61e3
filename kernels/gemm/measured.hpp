#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/formats/registry.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// Products for which another of cuBLASLt's candidates is faster than its first choice, as timed off line by
/// tests/bench/product_choices. Valid for the GPU and the library version below only.
struct Measured {
  bool codes;  ///< factors of FP8 blocks; else bf16
  Form form;   ///< Form::forward for codes, as LtPlans describes them
  Epilogue epilogue;
  std::int64_t m, n, k;
  int candidate;  ///< its position among the library's candidates, from 0
};
constexpr const char* measured_gpu = "NVIDIA H200";
constexpr std::size_t measured_library = 130100;  // cublasLtGetVersion()
// Behind each row: the time of the library's first choice, and the candidate's.
constexpr Measured measured[] = {
    {false, Form::weight_gradient, Epilogue::none, 1024, 1024, 32768, 2},  // 98.2 us, 96.5
    {false, Form::weight_gradient, Epilogue::none, 2048, 1024, 32768, 2},  // 203.1 us, 192.5
    {false, Form::weight_gradient, Epilogue::none, 2304, 768, 65536, 5},  // 372.9 us, 359.1
    {false, Form::weight_gradient, Epilogue::none, 4800, 1600, 16384, 5},  // 349.1 us, 341.9
    {false, Form::weight_gradient, Epilogue::none, 5120, 1280, 16384, 1},  // 358.9 us, 326.7
    {false, Form::weight_gradient, Epilogue::none, 11264, 2048, 16384, 4},  // 1122.9 us, 1067.8
    {false, Form::weight_gradient, Epilogue::none, 50304, 768, 4096, 6},  // 439.1 us, 421.2
    {false, Form::weight_gradient, Epilogue::none, 50304, 768, 5120, 6},  // 590.2 us, 559.7
    {false, Form::weight_gradient, Epilogue::none, 50304, 1024, 4352, 4},  // 720.0 us, 667.0
    {false, Form::weight_gradient, Epilogue::none, 50304, 1024, 4736, 4},  // 744.5 us, 707.0
    {false, Form::weight_gradient, Epilogue::none, 50304, 1280, 4096, 5},  // 784.1 us, 743.3
    {false, Form::weight_gradient, Epilogue::none, 50304, 1600, 4096, 7},  // 1005.8 us, 971.0
    {false, Form::weight_gradient, Epilogue::none, 50304, 2048, 4096, 6},  // 1271.9 us, 1216.6
    {false, Form::input_gradient, Epilogue::none, 4096, 1600, 50304, 2},  // 977.7 us, 923.8
    {false, Form::input_gradient, Epilogue::none, 5120, 768, 50304, 2},  // 569.1 us, 558.5
    {false, Form::input_gradient, Epilogue::none, 16384, 1280, 1280, 5},  // 83.4 us, 76.5
    {false, Form::input_gradient, Epilogue::none, 16384, 1280, 3840, 3},  // 235.6 us, 226.4
    {false, Form::input_gradient, Epilogue::none, 16384, 1280, 5120, 3},  // 319.0 us, 309.1
    {false, Form::input_gradient, Epilogue::none, 16384, 1600, 1600, 5},  // 127.5 us, 121.7
    {false, Form::input_gradient, Epilogue::none, 16384, 2048, 2048, 4},  // 204.6 us, 196.3
    {false, Form::input_gradient, Epilogue::none, 16384, 2048, 3072, 4},  // 298.8 us, 291.2
    {false, Form::input_gradient, Epilogue::none, 16384, 5632, 2048, 6},  // 571.7 us, 513.9
    {false, Form::input_gradient, Epilogue::none, 32768, 1024, 1024, 4},  // 113.2 us, 102.3
    {false, Form::input_gradient, Epilogue::none, 32768, 1024, 2048, 5},  // 201.4 us, 193.2
    {false, Form::input_gradient, Epilogue::none, 32768, 1024, 3072, 5},  // 308.0 us, 294.6
    {false, Form::input_gradient, Epilogue::none, 32768, 1024, 4096, 5},  // 415.1 us, 401.3
    {false, Form::input_gradient, Epilogue::none, 65536, 768, 768, 5},  // 135.5 us, 116.3
    {false, Form::input_gradient, Epilogue::none, 65536, 768, 2304, 5},  // 371.5 us, 345.8
    {false, Form::input_gradient, Epilogue::none, 65536, 768, 3072, 5},  // 476.0 us, 452.4
    {false, Form::forward, Epilogue::none, 4096, 50304, 768, 5},  // 446.3 us, 408.6
    {false, Form::forward, Epilogue::none, 4096, 50304, 1280, 5},  // 830.9 us, 722.0
    {false, Form::forward, Epilogue::none, 4096, 50304, 1600, 6},  // 1019.1 us, 913.4
    {false, Form::forward, Epilogue::none, 4096, 50304, 2048, 6},  // 1280.0 us, 1158.8
    {false, Form::forward, Epilogue::none, 4352, 50304, 1024, 5},  // 729.0 us, 627.0
    {false, Form::forward, Epilogue::none, 4736, 50304, 1024, 6},  // 737.2 us, 664.2
    {false, Form::forward, Epilogue::none, 5120, 50304, 768, 6},  // 681.9 us, 565.0
    {false, Form::forward, Epilogue::none, 16384, 2048, 2048, 4},  // 203.2 us, 194.1
    {false, Form::forward, Epilogue::none, 16384, 3072, 2048, 6},  // 313.9 us, 292.3
    {false, Form::forward, Epilogue::none, 16384, 11264, 2048, 6},  // 1107.0 us, 1016.7
    {false, Form::forward, Epilogue::none, 32768, 1024, 1024, 5},  // 106.2 us, 97.1
    {false, Form::forward, Epilogue::none, 32768, 2048, 1024, 3},  // 207.5 us, 182.5
    {false, Form::forward, Epilogue::bias, 16384, 1280, 1280, 5},  // 79.0 us, 75.3
    {false, Form::forward, Epilogue::bias, 16384, 1600, 1600, 5},  // 130.5 us, 118.5
    {false, Form::forward, Epilogue::bias, 16384, 3840, 1280, 6},  // 266.8 us, 249.5
    {false, Form::forward, Epilogue::bias, 32768, 1024, 1024, 5},  // 116.4 us, 101.7
    {false, Form::forward, Epilogue::bias, 32768, 1024, 4096, 6},  // 411.4 us, 398.9
    {false, Form::forward, Epilogue::bias, 32768, 3072, 1024, 5},  // 349.2 us, 335.6
    {false, Form::forward, Epilogue::bias, 65536, 768, 768, 7},  // 134.1 us, 115.4
    {false, Form::forward, Epilogue::bias, 65536, 768, 3072, 7},  // 462.5 us, 441.8
    {true, Form::forward, Epilogue::none, 1600, 1600, 16384, 1},  // 167.4 us, 113.6
    {true, Form::forward, Epilogue::none, 3840, 1280, 16384, 1},  // 249.0 us, 200.9
};

/// Its candidate; 0 for a product without a row.
constexpr int candidate_of(const Product& p) {
  const auto same = [&](const Measured& x) {
    return p.type == DType::bf16 && x.codes == p.a.has_value() && x.form == p.form && x.epilogue == p.epilogue &&
           (!p.a || p.a == formats::id_of<formats::Fp8BlockOneD>) && x.m == p.m && x.n == p.n && x.k == p.k;
  };
  const auto* const found = std::find_if(std::begin(measured), std::end(measured), same);
  return found == std::end(measured) ? 0 : found->candidate;
}

}  // namespace tessera::gemm
