#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>

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
constexpr Measured measured[] = {
    {false, Form::weight_gradient, Epilogue::none, 1024, 1024, 32768, 2},  // 100.3 us, 97.3
    {false, Form::weight_gradient, Epilogue::none, 1280, 5120, 16384, 1},  // 331.6 us, 323.2
    {false, Form::weight_gradient, Epilogue::none, 2048, 1024, 32768, 2},  // 197.4 us, 186.8
    {false, Form::weight_gradient, Epilogue::none, 2304, 768, 65536, 5},  // 359.2 us, 346.6
    {false, Form::weight_gradient, Epilogue::none, 3840, 1280, 16384, 1},  // 223.8 us, 217.7
    {false, Form::weight_gradient, Epilogue::none, 5120, 1280, 16384, 6},  // 376.2 us, 334.8
    {false, Form::weight_gradient, Epilogue::none, 11264, 2048, 16384, 4},  // 1122.9 us, 1067.8
    {false, Form::weight_gradient, Epilogue::none, 50304, 768, 4096, 6},  // 479.5 us, 441.5
    {false, Form::weight_gradient, Epilogue::none, 50304, 768, 5120, 6},  // 623.7 us, 581.6
    {false, Form::weight_gradient, Epilogue::none, 50304, 1024, 4352, 4},  // 675.4 us, 624.7
    {false, Form::weight_gradient, Epilogue::none, 50304, 1024, 4736, 4},  // 733.0 us, 682.0
    {false, Form::weight_gradient, Epilogue::none, 50304, 1280, 4096, 5},  // 833.7 us, 770.3
    {false, Form::weight_gradient, Epilogue::none, 50304, 1600, 4096, 7},  // 1089.9 us, 1032.8
    {false, Form::weight_gradient, Epilogue::none, 50304, 2048, 4096, 6},  // 1271.9 us, 1216.6
    {false, Form::input_gradient, Epilogue::none, 4096, 1600, 50304, 2},  // 977.2 us, 906.3
    {false, Form::input_gradient, Epilogue::none, 4352, 1024, 50304, 1},  // 648.3 us, 634.3
    {false, Form::input_gradient, Epilogue::none, 16384, 1280, 1280, 3},  // 87.7 us, 79.6
    {false, Form::input_gradient, Epilogue::none, 16384, 1280, 3840, 6},  // 232.9 us, 223.7
    {false, Form::input_gradient, Epilogue::none, 16384, 1280, 5120, 3},  // 317.3 us, 308.4
    {false, Form::input_gradient, Epilogue::none, 16384, 2048, 2048, 4},  // 204.6 us, 196.3
    {false, Form::input_gradient, Epilogue::none, 16384, 2048, 3072, 4},  // 298.8 us, 291.2
    {false, Form::input_gradient, Epilogue::none, 16384, 5632, 2048, 6},  // 571.7 us, 513.9
    {false, Form::input_gradient, Epilogue::none, 32768, 1024, 1024, 4},  // 111.1 us, 99.9
    {false, Form::input_gradient, Epilogue::none, 32768, 1024, 2048, 5},  // 200.9 us, 189.5
    {false, Form::input_gradient, Epilogue::none, 32768, 1024, 3072, 5},  // 301.4 us, 289.0
    {false, Form::input_gradient, Epilogue::none, 32768, 1024, 4096, 3},  // 405.3 us, 388.9
    {false, Form::input_gradient, Epilogue::none, 65536, 768, 768, 5},  // 135.2 us, 114.9
    {false, Form::input_gradient, Epilogue::none, 65536, 768, 2304, 5},  // 344.8 us, 324.4
    {false, Form::input_gradient, Epilogue::none, 65536, 768, 3072, 5},  // 465.1 us, 442.1
    {false, Form::forward, Epilogue::none, 4096, 50304, 768, 7},  // 500.3 us, 418.9
    {false, Form::forward, Epilogue::none, 4096, 50304, 1280, 5},  // 850.0 us, 744.4
    {false, Form::forward, Epilogue::none, 4096, 50304, 1600, 6},  // 1064.5 us, 949.0
    {false, Form::forward, Epilogue::none, 4096, 50304, 2048, 6},  // 1280.0 us, 1158.8
    {false, Form::forward, Epilogue::none, 4352, 50304, 1024, 5},  // 714.7 us, 614.4
    {false, Form::forward, Epilogue::none, 4736, 50304, 1024, 7},  // 763.2 us, 659.0
    {false, Form::forward, Epilogue::none, 5120, 50304, 768, 5},  // 654.0 us, 542.6
    {false, Form::forward, Epilogue::none, 16384, 2048, 2048, 4},  // 203.2 us, 194.1
    {false, Form::forward, Epilogue::none, 16384, 3072, 2048, 6},  // 313.9 us, 292.3
    {false, Form::forward, Epilogue::none, 16384, 11264, 2048, 6},  // 1107.0 us, 1016.7
    {false, Form::forward, Epilogue::none, 32768, 1024, 1024, 5},  // 112.5 us, 100.9
    {false, Form::forward, Epilogue::none, 32768, 2048, 1024, 3},  // 219.4 us, 189.9
    {false, Form::forward, Epilogue::bias, 16384, 1280, 1280, 5},  // 83.7 us, 77.1
    {false, Form::forward, Epilogue::bias, 16384, 4800, 1600, 5},  // 390.5 us, 377.6
    {false, Form::forward, Epilogue::bias, 32768, 1024, 1024, 5},  // 117.7 us, 104.2
    {false, Form::forward, Epilogue::bias, 32768, 1024, 4096, 6},  // 408.3 us, 398.1
    {false, Form::forward, Epilogue::bias, 32768, 3072, 1024, 5},  // 345.3 us, 334.3
    {false, Form::forward, Epilogue::bias, 65536, 768, 768, 7},  // 136.5 us, 116.6
    {false, Form::forward, Epilogue::bias, 65536, 768, 3072, 7},  // 444.4 us, 426.0
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
