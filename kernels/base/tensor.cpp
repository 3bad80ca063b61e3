#include "kernels/base/tensor.hpp"

namespace tessera {

std::string Shape::text() const {
  std::string s = "[";
  for (int i = 0; i < rank_; ++i) s += (i ? "," : "") + std::to_string((*this)[i]);
  return s + "]";
}

}  // namespace tessera
