#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/gemm/converted.hpp"
#include "kernels/gemm/product.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera::gemm {

/// The alphas of a scaled product of codes, for Addresses::alpha: of each b of an expert, in the stream's workspace.
/// One launch makes them from the amaxes of the factors that lack their tensor's scale. They are valid until the next
/// product on the stream.
Tensor alphas_of(Stream& stream, const Product& product, const Addresses& at, Route route);

/// A product with factors of codes turned into one of bf16 values, for codes that no hardware unit multiplies. Each
/// such factor is decoded exactly to bf16 [rows, columns], if it is not yet; tensor scales become the product's alpha.
class Decoded : public Converted {
 public:
  Decoded(Stream& stream, const Product& product, const Addresses& at);
};

}  // namespace tessera::gemm
