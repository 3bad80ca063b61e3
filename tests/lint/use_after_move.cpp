// An example for clang-tidy, built into nothing: a token that is clipped twice.
#include <utility>

#include "core/params/tokens.hpp"

namespace tessera {

void clip(Reduced reduced);

void clip_twice(Reduced reduced) {
  clip(std::move(reduced));
  clip(std::move(reduced));
}

}  // namespace tessera
