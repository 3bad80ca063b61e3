#pragma once
#include <memory>
#include <utility>

#include "core/comm/control.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {

/// Makes a T on every rank. The constructor is local and may run out of memory: if it fails on one rank, all ranks
/// throw the same Error. Collective over the world.
template <class T, class... Arguments>
std::unique_ptr<T> make_on_all(Control& control, Arguments&&... arguments) {
  std::unique_ptr<T> made;
  Problems problems;
  attempt(problems, [&] { made = std::make_unique<T>(std::forward<Arguments>(arguments)...); });
  control.agree(problems);
  return made;
}

}  // namespace tessera
