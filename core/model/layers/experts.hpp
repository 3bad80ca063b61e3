#pragma once
#include <vector>

#include "core/model/layers/factors.hpp"
#include "core/model/layers/parameter.hpp"
#include "core/model/shape.hpp"

namespace tessera {

struct ExpertsShape {
  MoeShape moe;
  std::int64_t in = 0, out = 0;
  double deviation = initial_deviation;
  Accumulation accumulation = Accumulation::fused;
  MatrixName part = MatrixName::other;
  Shape parts = {};  ///< of one expert, as in ParamSpec, as is `part`
};

/// One projection of the experts that this rank holds, y = x W_e^T over rows sorted by expert: one grouped parameter
/// (single) or one an expert (discrete). Both have the same members in the same order, and the same bits.
class Experts {
 public:
  /// Registers `name`.`projection`.weight with a member an expert, or `name`.E.`projection`.weight for each expert E;
  /// both are parts of that dataset, which holds all experts.
  Experts(ParamRegistry& registry, const std::string& name, const std::string& projection, const ExpertsShape& shape);

  /// At multiples of so many rows each expert's begin.
  std::int64_t row_multiple() const { return factors_.expert_rows(); }

  using Saved = Factors::Saved;
  /// For the codes of at most `rows` rows; the codes of those that there are.
  Saved place(Arena& arena, std::int64_t rows) const {
    return factors_.place_columns(arena, {rows, member_[1]}, Values::passing);
  }
  Saved first_rows(const Saved& saved, std::int64_t rows) const {
    return factors_.first_rows(saved, {rows, member_[1]});
  }

  /// Fills y and, where a backward follows, saved.
  /// Rows of expert e are those of routing.offsets; the results of rows behind the last expert's are zero, or
  /// left where the call ends the rows.
  void forward(const Call& call, const Tensor& y, const Factors::Input& x, const Routing& routing,
               const Saved& saved) const;
  /// dy as both products of backward take it, in the caller's frame of the arena. `numbers` (i64 [S]) of the rows,
  /// where gradients draw(): what random rounding is keyed by.
  Factors::Gradient gradient(const Call& call, const Factors::OutputGradient& dy, const Tensor& numbers) const {
    return factors_.gradient(call, dy, false, numbers);
  }
  bool draws() const { return factors_.draws(); }
  /// Whether x, and dy, may be computed from an activation's input while they are quantized.
  bool computes_activation() const { return factors_.computes_activation(); }
  bool computes_gradient() const { return factors_.computes_gradient(); }
  void input_gradient(const Call& call, const Tensor& dx, const Factors::Gradient& dy, const Routing& routing) const;
  /// Of x with saved codes, only the shape is read.
  void weight_gradient(const Call& call, const Factors::Gradient& dy, const Factors::Input& x, const Routing& routing,
                       const Saved& saved) const;
  bool quantizes_columns() const { return factors_.quantizes_columns(); }

 private:
  /// Calls `f` with an operand for each parameter, all in use.
  template <class F>
  void with_operands(const Call& call, Side side, const F& f) const;

  static std::vector<ParamId> add(ParamRegistry& registry, const std::string& name, const std::string& projection,
                                  const ExpertsShape& shape);

  Shape member_;
  Accumulation accumulation_;
  std::vector<ParamId> weights_;  ///< one, or one an expert
  Factors factors_;
};

}  // namespace tessera
