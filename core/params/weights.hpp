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
  /// Called on `stream` where a group has just been consumed.
  using Observer = std::function<void(Stream& stream, GroupId group)>;

  explicit Weights(ParamSync& sync) : sync_(sync) {}

  Use operand(Stream& stream, ParamId param, Side side) override;

  WeightState state(GroupId group) const;
  /// Every stored array; meaningful while its group is Ready.
  void visit_planes(const std::function<void(const Plane&)>& visit) const;

  void observe(Observer observer);
  bool observed() const;
  /// All-gathers so far under which other work was launched before anything waited for them.
  std::int64_t overlapped() const;

 private:
  void ended(ParamId param) noexcept override;

  ParamSync& sync_;
};

}  // namespace tessera
