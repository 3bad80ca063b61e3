#pragma once
// Dense products by cuBLASLt. CUDA builds only.
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/base/choices.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// Addresses of the factors and results of a dense product.
struct LtPlaces {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  void* aux = nullptr;
  const float* alpha = nullptr;  ///< scaled products: alpha and beta, both on the device
  const float* beta = nullptr;
  const void* scales_a = nullptr;  ///< scales of factors that are codes
  const void* scales_b = nullptr;
};

/// A product of codes as they are stored. Where columnwise copies lie transposed, the summed dimension is contiguous in
/// both factors, so c = a b^T whatever the form. Copies of MXFP8 lie like values.
Product as_codes_lie(Product product);

/// A stream's cuBLASLt: the library handle, and an algorithm for each product. It is the one that the stream's
/// LibraryChoices name, else the candidate that measured.hpp names, else the library's first choice. That depends only
/// on the product, the alignment of its places, the library's version and the GPU. No algorithm adds in an order that
/// changes from run to run. It takes products of codes by as_codes_lie().
class LtPlans {
 public:
  LtPlans();
  ~LtPlans();
  LtPlans(const LtPlans&) = delete;
  LtPlans& operator=(const LtPlans&) = delete;

  static constexpr std::int64_t workspace_bytes = std::int64_t{64} << 20;

  /// Runs on `stream`, a cudaStream_t, in `workspace`. Returns false, with nothing done, if the library has no such
  /// product.
  bool run(void* stream, void* workspace, const Product& product, const LtPlaces& places,
           const LibraryChoices& choices);

  /// The key of LibraryChoices: the product, and the alignment of its places.
  static LibraryChoices::Words work(const Product& product, const LtPlaces& places);
  /// Implements gemm::choose().
  LibraryChoices::Words choose(const LibraryChoices::Words& work, const LibraryChoices::Words& preferred);

  /// For benchmarks: the product that `work` is the key of, and the library's candidates for it, first choice first.
  static constexpr int most_candidates = 16;
  static Product product_of(const LibraryChoices::Words& work);
  std::vector<LibraryChoices::Words> candidates(const LibraryChoices::Words& work);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::gemm
