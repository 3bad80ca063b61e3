#pragma once
// Host builds only: products by our own hands.
#include "kernels/gemm/plans.hpp"

namespace tessera::gemm {

/// One product, computed in tiles of c whose sums stay in registers: a is read where it lies, b from panels, in which
/// the columns of one tile follow each other. Sums are of fp32 (fp64 for fp64) and run along k in order, so that the
/// bits of an element depend on its own row and column alone. Serial: shares of the packing are independent of each
/// other, as are bands of rows; several threads may take them.
class Panels {
 public:
  /// The largest k. A deeper product is a sum of several, with beta 1 from the second on.
  static constexpr std::int64_t deepest = 512;

  /// `threads` will share the bands equally.
  explicit Panels(const Product& product, int threads = 1);

  static std::int64_t width(DType type);           ///< columns of a panel
  std::int64_t height() const { return height_; }  ///< rows of a band
  std::int64_t bytes() const;                      ///< of all panels
  std::int64_t shares() const;                     ///< of the packing
  std::int64_t bands() const;                      ///< of c

  /// One share of b into its place in `panels`, which is aligned to 64 bytes.
  void pack(std::byte* panels, const void* b, std::int64_t share) const;
  /// One band of c = beta c + a b + bias. `bias` is null where the product has none.
  void multiply(void* c, const void* a, const std::byte* panels, const void* bias, std::int64_t band) const;

 private:
  Product p_;
  std::int64_t height_;
};

}  // namespace tessera::gemm
