#pragma once
#include "core/model/pass.hpp"

namespace tessera {

/// A Pass over one micro-batch, as the layers of the model see it.
///
/// A layer has a struct Saved, the only list of what its backward needs besides its input x, and
///   Saved place(Arena&, tokens)                  where that lies, from arena.keep()
///   void forward(call, x, saved, y)              fills saved and y; without y only saved is wanted
///   void backward(call, dx, dy, x, saved)        writes dx, adds to the gradients of its parameters
/// Temporaries are given back on return. Nothing is summed or counted in forward, which may run twice.
struct Call : Pass {
  double loss_scale = 0;  ///< of the micro-batch: what the gradient of a sum over tokens is multiplied by
  Tensor rotation;        ///< the table of rotary(); empty when positions are learned
  std::int64_t first_token = 0;  ///< of the micro-batch, in the global batch
  /// Of a sequence that is being extended, the rows being its next tokens: keys and values of the block [T, 2 G D], and
  /// the position of the first row. Empty in training. `rotation` begins at that position.
  Tensor cache = {};
  std::int64_t position = 0;
  Tensor row_tokens = {};  ///< of experts' rows, i32 [rows]: -1 where a row is no token's; empty: every row is one's
  /// Of experts' rows, i32 [1]: those from there on hold nothing and are not touched; empty: every row has a value, 0
  /// where it is no token's.
  Tensor rows_end = {};
  Tensor positions = {};  ///< of the micro-batch's tokens in their documents; empty: in their sequences
  SlotChoices choices = {};
  /// Of a sequence that is being extended by experts of a capacity: slots before the first row, i32 [layers with
  /// experts, E], to which each layer adds its own. Else empty.
  Tensor taken = {};
};

/// What becomes of an activation's values behind its product. Kept: they stay for a reader in backward. Passing: their
/// memory is given back, since backward needs them in another form at most.
enum class Values : std::uint8_t { kept, passing };

/// Lets `write` add the next contribution to a parameter's gradient and says that it is there.
template <class Write>
void contribute(const Pass& pass, ParamId param, const Write& write) {
  write(pass.gradients->slot(param));
  pass.gradients->written(pass.stream, param);
}

}  // namespace tessera
