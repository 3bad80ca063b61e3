#pragma once

namespace tessera {

/// Instruction sets of x86 that the compiler was allowed to use in this program (TESSERA_CPU).
struct BuiltFor {
  bool sse4_2 = false, avx2 = false, fma = false, bmi2 = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false, avx512vbmi = false, avx512bf16 = false;
};
extern const BuiltFor built_for;

}  // namespace tessera
