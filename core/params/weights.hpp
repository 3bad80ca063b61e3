#pragma once
#include <cstdint>
#include <functional>

#include "core/layout/layout.hpp"
#include "core/params/access.hpp"
#include "core/params/state.hpp"
#include "core/params/wires/wire.hpp"

namespace tessera {

class ParamSync;

/// The weights of a ParamSync, as a view for models: Q(bf16(master)) of every parameter on every rank, a cache of the
/// masters. operand() is the only access to a weight, and always gives the masters' epoch.
class Weights final : public WeightSource {
 public:
  /// Called for each array that has just been gathered or rebuilt on `stream`: once a visit.
  using Observer = std::function<void(Stream& stream, const Plane& array)>;

  explicit Weights(ParamSync& sync) : sync_(sync) {}

  Use operand(Stream& stream, ParamId param, Side side) override;

  WeightState state(GroupId group) const;
  /// Visits every stored array, in slot 0 of its pool. Contents are valid while the group is Ready there.
  void visit_planes(const std::function<void(const Plane&)>& visit) const;

  void observe(Observer observer);
  bool observed() const;
  /// Number of all-gathers so far that overlapped: other work was launched before anything waited for them.
  std::int64_t overlapped() const;

 private:
  void ended(ParamId param) noexcept override;

  ParamSync& sync_;
};

}  // namespace tessera
