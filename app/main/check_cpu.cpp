// Ends a program that was built for a newer CPU with a message instead of SIGILL. Compiled for any x86-64, whatever
// TESSERA_CPU says.
#ifdef __x86_64__
#include <cstdio>
#include <cstdlib>

#include "app/main/built_for.hpp"

namespace tessera {
namespace {

const char* lacking() {
  __builtin_cpu_init();
  if (built_for.sse4_2 && !__builtin_cpu_supports("sse4.2")) return "SSE4.2";
  if (built_for.avx2 && !__builtin_cpu_supports("avx2")) return "AVX2";
  if (built_for.fma && !__builtin_cpu_supports("fma")) return "FMA";
  if (built_for.bmi2 && !__builtin_cpu_supports("bmi2")) return "BMI2";
  if (built_for.avx512f && !__builtin_cpu_supports("avx512f")) return "AVX-512";
  if (built_for.avx512bw && !__builtin_cpu_supports("avx512bw")) return "AVX-512 BW";
  if (built_for.avx512dq && !__builtin_cpu_supports("avx512dq")) return "AVX-512 DQ";
  if (built_for.avx512vl && !__builtin_cpu_supports("avx512vl")) return "AVX-512 VL";
  if (built_for.avx512vbmi && !__builtin_cpu_supports("avx512vbmi")) return "AVX-512 VBMI";
  if (built_for.avx512bf16 && !__builtin_cpu_supports("avx512bf16")) return "AVX-512 BF16";
  return nullptr;
}

// Runs before all other initialisation of the program, which may use any instruction. Exit code 4: Exit::environment.
[[gnu::constructor(101)]] void check_cpu() {
  const char* const missing = lacking();
  if (missing == nullptr) return;
  std::fprintf(stderr,
               "tessera: this CPU lacks %s, for which the program was built. Build it on this machine, or elsewhere "
               "for a level that this CPU has: cmake --preset host -DTESSERA_CPU=x86-64-v2 (or -v3)\n",
               missing);
  std::_Exit(4);
}

}  // namespace
}  // namespace tessera
#endif
