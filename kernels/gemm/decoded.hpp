#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// The alphas of a scaled product of codes, for Addresses::alpha. There is one of each b of an expert, in the stream's
/// workspace, made from the factors' amaxes by one launch. Valid until the next product on the stream.
Tensor alphas_of(Stream& stream, const Product& product, const Addresses& at);

/// A product of codes turned into a product of bf16 values, for codes that no hardware unit multiplies. Each factor is
/// decoded exactly to bf16 [rows, columns] in the stream's workspace, if it is not yet. The factors' tensor scales
/// become the product's alpha. Valid until the next product on the stream.
class Decoded {
 public:
  Decoded(Stream& stream, const Product& product, const Addresses& at);
  Decoded(const Decoded&) = delete;
  Decoded& operator=(const Decoded&) = delete;

  const Product& product() const { return product_; }
  const Addresses& places() const { return places_; }

 private:
  Product product_;
  Addresses places_;
  Operand b_;
};

}  // namespace tessera::gemm
