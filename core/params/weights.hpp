#pragma once
#include <cstdint>
#include <functional>

#include "core/layout/layout.hpp"
#include "core/params/access.hpp"
#include "core/params/state.hpp"
#include "core/params/wires/wire.hpp"

namespace tessera {

class ParamSync;

/// The weights of a ParamSync as a model sees them: Q(bf16(master)) of every parameter on every rank, a cache of the
/// masters. operand() is the only way to one and never hands out an older epoch than the masters'.
class Weights final : public WeightSource {
 public:
  /// Called on `stream` for each array that has just been gathered or rebuilt: once a step for weights in one place, at
  /// each visit for weights in a pool.
  using Observer = std::function<void(Stream& stream, const Plane& array)>;

  explicit Weights(ParamSync& sync) : sync_(sync) {}

  Use operand(Stream& stream, ParamId param, Side side) override;

  /// State of a group's weights; of one that visits a pool, in slot `place`.
  WeightState state(GroupId group, int place = 0) const;
  /// Every stored array, in the first of its places; meaningful while its group is Ready there.
  void visit_planes(const std::function<void(const Plane&)>& visit) const;

  void observe(Observer observer);
  bool observed() const;
  /// Overlapped all-gathers so far: other work was launched before anything waited for them.
  std::int64_t overlapped() const;

 private:
  void ended(ParamId param) noexcept override;

  ParamSync& sync_;
};

}  // namespace tessera
