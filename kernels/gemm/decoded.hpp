#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// The product of values that a product of codes comes to where no unit multiplies these codes: each factor decoded to
/// bf16 [rows, columns], exactly, in the stream's workspace; what their tensor scales multiply the sum by is the alpha.
/// Valid until the next product on the stream.
class Decoded {
 public:
  Decoded(Stream& stream, const Product& product, const Places& at);
  Decoded(const Decoded&) = delete;
  Decoded& operator=(const Decoded&) = delete;

  const Product& product() const { return product_; }
  const Places& places() const { return places_; }

 private:
  Product product_;
  Places places_;
  Operand b_;
};

}  // namespace tessera::gemm
