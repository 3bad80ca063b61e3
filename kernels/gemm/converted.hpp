#pragma once
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// A product of codes turned into one that a library takes. What its factors became lies in the stream's workspace:
/// valid until the next product on the stream.
class Converted {
 public:
  Converted(const Converted&) = delete;
  Converted& operator=(const Converted&) = delete;

  const Product& product() const { return product_; }
  const Addresses& places() const { return places_; }

 protected:
  Converted(const Product& product, const Addresses& at) : product_(product), places_(at) {}

  Product product_;
  Addresses places_;
  Operand b_;  ///< what places_.b names, where it became another
};

}  // namespace tessera::gemm
