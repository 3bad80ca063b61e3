#pragma once
// CUDA builds only: the products that cuBLASLt is asked for.
#include <array>
#include <compare>
#include <cstdint>
#include <memory>

#include "kernels/base/choices.hpp"
#include "kernels/base/dtype.hpp"

namespace tessera::gemm {

enum class Form : std::uint8_t { plain, transposed };

/// What becomes of a sum before it is rounded and stored.
enum class Epilogue : std::uint8_t {
  none,
  bias,       ///< + bias [n]
  gelu,       ///< aux = the sum, c = gelu(sum)
  bias_gelu,  ///< aux = sum + bias, c = gelu of that
  dgelu,      ///< c = sum gelu'(aux)
};

/// c [m,n] = epilogue(beta c + a [m,k] b [k,n]), row-major, in fp32 (fp64 for fp64) and rounded once; fp32 stays fp32
/// (no TF32). `lda` is the distance, in elements, from one row of `a` to the next as it lies in memory: of a itself if
/// plain, of its transpose otherwise; ldb and ldc likewise.
struct LtProduct {
  DType type = DType::f32;  ///< of a, b, bias and aux
  DType sum = DType::f32;   ///< of c
  Form a = Form::plain, b = Form::plain;
  Epilogue epilogue = Epilogue::none;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  float beta = 0;

  auto operator<=>(const LtProduct&) const = default;
};

struct LtPlaces {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  void* aux = nullptr;
};

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
  bool run(void* stream, void* workspace, const LtProduct& product, const LtPlaces& places,
           const LibraryChoices& choices);

  /// The product at places that are so aligned, as LibraryChoices name it.
  static LibraryChoices::Words work(const LtProduct& product, const LtPlaces& places);
  /// As gemm::choose.
  LibraryChoices::Words choose(const LibraryChoices::Words& work, const LibraryChoices::Words& preferred);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::gemm
