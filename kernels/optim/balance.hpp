#pragma once
#include "kernels/reduce/reduce.hpp"

namespace tessera {

/// What becomes of an element of a slice of routers' state.
struct BalanceKind {
  static constexpr float none = 0;   ///< there is none
  static constexpr float load = -1;  ///< it becomes the step's count; any number above 0: the experts of a bias' router
};

/// Loss-free balancing (Wang 2024) of a slice [n] of fp32 state: a selection bias += rate * sign(mean - count), with
/// the mean `slots` / experts of an expert's count. They are compared exactly (count * experts against slots, in
/// double); sign(0) = 0. A load = count. `kind` [n] says which elements are what: see BalanceKind. Nothing changes
/// where clip->skip (on the device) is set. Orders on `stream`. Local.
void balance_step(Stream& stream, const Tensor& state, const Tensor& count, const Tensor& kind, float rate,
                  double slots, const ClipResult* clip);

}  // namespace tessera
