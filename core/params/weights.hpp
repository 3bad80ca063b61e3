#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/device/device.hpp"
#include "core/layout/layout.hpp"
#include "core/params/access.hpp"
#include "core/params/masters.hpp"
#include "core/params/state.hpp"
#include "core/params/sync_rules.hpp"
#include "core/params/usage.hpp"
#include "core/params/wires/wire.hpp"

namespace tessera {

/// The weight half of ParamSync: Q(bf16(master)) of every parameter on every rank, a cache of the masters. operand() is
/// the only way to a weight and never hands out an older epoch than the masters'.
class Weights final : public WeightSource {
 public:
  /// Called on `stream` where a group has just been consumed.
  using Observer = std::function<void(Stream& stream, int group)>;

  Weights(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Usage& usage,
          const Masters& masters, Mesh& mesh, Overlap overlap);

  Operand operand(Stream& stream, ParamId param, Side side) override;

  /// The whole bucket as stored; meaningful while its group is Ready.
  const Tensor& storage(int bucket) const { return storage_[static_cast<std::size_t>(bucket)]; }
  const WeightMachine& machine(int group) const { return groups_[static_cast<std::size_t>(group)].machine; }
  void observe(Observer observer) { observer_ = std::move(observer); }
  bool observed() const { return static_cast<bool>(observer_); }
  /// Gathers so far under which other work was launched before anything waited for them.
  std::int64_t overlapped() const { return overlapped_; }

 private:
  friend class ParamSync;
  struct Group {
    WeightMachine machine;
    std::vector<Exchange> exchanges;
    Pending pending;
    std::int64_t launches = 0;
    int next = -1;  ///< the group that is used after this one
  };

  void outdate();                           ///< Ready -> Stale, every group
  void stage(Stream& stream, int group);    ///< Stale -> Staged
  void begin(Stream& stream, int group);    ///< Staged -> InFlight
  void finish(Stream& stream, int group);   ///< InFlight -> Ready
  void advance(Stream& stream, int group);  ///< whatever is left, to Ready

  const ParamLayout& layout_;
  const Masters& masters_;
  Mesh& mesh_;
  Overlap overlap_;
  std::unique_ptr<Wire> wire_;
  std::vector<Tensor> storage_;
  std::vector<Operand> operands_;
  std::vector<Group> groups_;
  std::vector<int> order_;  ///< groups by first use; every group once
  Observer observer_;
  std::int64_t overlapped_ = 0;
};

}  // namespace tessera
