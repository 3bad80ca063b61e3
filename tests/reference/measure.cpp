#include "tests/reference/measure.hpp"

namespace tessera::reference {

void add_square(Natural& sum, float x) {
  int exponent = 0;
  const double significand = std::frexp(static_cast<double>(std::fabs(x)), &exponent);  // x = significand 2^exponent
  const auto whole = static_cast<std::uint64_t>(std::ldexp(significand, 24));           // of at most 24 bits
  const int shift = 2 * (exponent - 24) + 300;
  // The least numbers have fewer bits than 24: their zeros below the unit are cut.
  shift >= 0 ? sum.add(whole * whole, shift) : sum.add(whole * whole >> -shift, 0);
}

Natural natural(const std::uint64_t (&limbs)[ExactSum::limbs]) {
  Natural sum;
  for (int i = 0; i < ExactSum::limbs; ++i) sum.add(limbs[i], 32 * i);
  return sum;
}

void Statistics::add(const Statistics& other) {
  elements += other.elements;
  zeros += other.zeros;
  nan += other.nan;
  infinite += other.infinite;
  saturated += other.saturated;
  underflow += other.underflow;
  amax = std::max(amax, other.amax);
  for (std::size_t e = 0; e < exponents.size(); ++e) exponents[e] += other.exponents[e];
  values.add(other.values);
  errors.add(other.errors);
}

}  // namespace tessera::reference
