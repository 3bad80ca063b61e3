#include <benchmark/benchmark.h>

#include "kernels/base/runtime.hpp"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const tessera::Runtime runtime;
  benchmark::AddCustomContext("back end", tessera::Runtime::back_end());
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
