#pragma once
#include <array>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/device/device.hpp"
#include "core/layout/layout.hpp"
#include "core/params/state.hpp"
#include "core/params/sync_rules.hpp"
#include "core/params/usage.hpp"

namespace tessera {

/// The gradient half of ParamSync: fp32 main gradients of every bucket, their state machines, and their reduction: in
/// rank order, ((g0 + g1) + g2) + ..., by an all-to-all of slices and one local sum, or by the library's
/// reduce-scatter. Nothing is cleared: the first write has beta 0, and what was never written is filled with zeros on
/// the edge into Reducing.
class Gradients {
 public:
  Gradients(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Usage& usage,
            Mesh& mesh, const SyncRules& rules);

  Gradient slot(ParamId param);
  void written(Stream& stream, ParamId param);
  void reduce(Stream& stream);  ///< collective; every group becomes Reduced
  void drop();                  ///< back to Empty, whatever was written; finishes what is in flight
  void release();               ///< Reduced -> Empty

  int buckets() const { return static_cast<int>(storage_.size()); }
  /// The whole bucket / this rank's slice of it, which holds the sum over ranks once Reduced.
  const Tensor& storage(int bucket) const { return storage_[static_cast<std::size_t>(bucket)]; }
  Tensor shard(int bucket) const;
  GradientState state(int group) const { return groups_[static_cast<std::size_t>(group)].machine.state(); }
  /// Reductions so far under which other work was launched before anything waited for them.
  std::int64_t overlapped() const { return overlapped_; }

 private:
  static constexpr int ring = 2;  ///< exchanges in flight at most; in rank order each needs a receive buffer

  struct Group {
    GradientMachine machine;
    int waiting = 0;  ///< parameters whose last contribution is still to come
  };
  struct Parameter {
    int expected = 0, written = 0;  ///< contributions of one step
  };
  struct Flight {
    int group = -1, slot = 0;
    Pending pending;
    std::int64_t launches = 0;
  };

  void prepare_exchanges(Device& device);
  void begin(Stream& stream, int group);
  void finish_oldest(Stream& stream);
  void fill_unwritten(Stream& stream, const Bucket& bucket, const Tensor& storage);
  void restart();

  const ParamRegistry& registry_;
  const ParamLayout& layout_;
  Mesh& mesh_;
  SyncRules rules_;
  std::vector<Tensor> storage_;
  std::vector<Group> groups_;
  std::vector<Parameter> parameters_;
  std::vector<std::vector<Exchange>> exchanges_;  ///< by group and ring slot, prepared once
  std::array<Flight, ring> flights_;
  int oldest_ = 0, in_flight_ = 0;
  std::int64_t overlapped_ = 0;
};

}  // namespace tessera
