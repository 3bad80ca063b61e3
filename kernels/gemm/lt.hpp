#pragma once
// CUDA builds only: dense products by cuBLASLt.
#include <cstdint>
#include <memory>

#include "kernels/base/choices.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// Where the factors and results of a dense product lie.
struct LtPlaces {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  void* aux = nullptr;
  const float* alpha = nullptr;  ///< of a scaled product, on the device, and what its beta is read from
  const float* beta = nullptr;
  const float* scales_a = nullptr;  ///< of factors that are codes
  const float* scales_b = nullptr;
};

/// A product of factors that are codes is described as they lie: a [m,k] and b [n,k], plain, so of Form::forward.
/// A stream's cuBLASLt: its handle, and for each product its algorithm: what the stream's LibraryChoices
/// say, else the library's own first choice, which depends on the product, the alignment of its places, the library's
/// version and the GPU alone. No algorithm adds in an order that changes from run to run.
class LtPlans {
 public:
  LtPlans();
  ~LtPlans();
  LtPlans(const LtPlans&) = delete;
  LtPlans& operator=(const LtPlans&) = delete;

  static constexpr std::int64_t workspace_bytes = std::int64_t{64} << 20;

  /// Runs on `stream`, a cudaStream_t, in `workspace`. False, with nothing done, where the library has no such product.
  bool run(void* stream, void* workspace, const Product& product, const LtPlaces& places,
           const LibraryChoices& choices);

  /// The product at places that are so aligned, as LibraryChoices name it.
  static LibraryChoices::Words work(const Product& product, const LtPlaces& places);
  /// As gemm::choose.
  LibraryChoices::Words choose(const LibraryChoices::Words& work, const LibraryChoices::Words& preferred);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::gemm
