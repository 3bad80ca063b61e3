#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/params/running_sums.hpp"
#include "core/params/slots.hpp"
#include "core/params/sync_rules.hpp"

namespace tessera {

/// Numbers of collectives that overlapped: other work was launched before anything waited for them.
struct Overlapped {
  std::int64_t gathers = 0, reductions = 0;
  bool operator==(const Overlapped&) const = default;
};

/// Counts them over eager and replayed steps.
class OverlapCounts {
 public:
  Overlapped now;

  void begin_capture() { captured_ = now; }
  void end_capture() { captured_ = {now.gathers - captured_.gathers, now.reductions - captured_.reductions}; }
  /// Adds those of the captured step.
  void replayed() { now = {now.gathers + captured_.gathers, now.reductions + captured_.reductions}; }

 private:
  Overlapped captured_;
};

/// Reductions under way, oldest first. Gradients are rounded to their wire, this rank's own part as well. All-to-alls
/// of shards follow on the copies' stream, each into a receive slot. Then come local sums in rank order,
/// ((g0 + g1) + g2) + ..., there too, so that backward does not wait. Between sharding groups RunningSums passes the
/// sums on.
class PendingReductions {
 public:
  PendingReductions(Device& device, const ParamRegistry& registry, const ParamLayout& layout, Mesh& mesh,
                    const SyncSchedule& schedule, const SyncRules& rules, OverlapCounts& counts);

  /// Begins a step, whose random numbers follow from `key`.
  void begin(const WireKey& key) { key_ = key; }
  /// Starts the reduction of a group, behind the work that `stream` holds; without overlap awaits it. One rank alone
  /// adds its gradients to the running sum. Collective over the group's processes.
  void start(Stream& stream, const Reduction& reduction, const ParamGroup& group);
  /// Orders `stream` behind what last read the memory of the gradients that `next` will sum.
  void free(Stream& stream, const Reduction& next);
  /// Orders `stream` behind all sums.
  void finish(Stream& stream);
  /// Drops what is under way. Running sums end before later work on `stream`.
  void drop(Stream& stream);

 private:
  struct PendingReduction {
    const Reduction* reduction = nullptr;
    const ParamGroup* group = nullptr;
    Pending pending;
    std::int64_t launches_before = 0;
  };

  /// The last reduction that summed a gradient slot, and the event behind which its memory is free.
  struct Summed {
    const Reduction* reduction = nullptr;
    Event event;
  };

  PendingReduction& flight(std::size_t i) { return flights_[(oldest_ + i) % receive_slots]; }
  void finish_oldest(Stream& stream);
  void mark_summed(Stream& copies, const Reduction& reduction);
  void add_up_alone(Stream& stream, const Reduction& reduction, const ParamGroup& group);
  void encode(Stream& copies, const Reduction& reduction, const ParamGroup& group, const ReductionMemory& memory);
  void encode_at_random(Stream& copies, const Reduction& reduction, const Bucket& bucket, const Tensor& gradients,
                        const WireArray& sent);
  void add_up(Stream& copies, const Reduction& reduction, const ParamGroup& group, const ReductionMemory& memory);
  void restart();

  Device& device_;
  const ParamLayout& layout_;
  Mesh& mesh_;
  const SyncSchedule& schedule_;
  const SyncRules& rules_;
  IndexedBy<ParamId, std::uint64_t> draws_;  ///< hashes by which random numbers are keyed
  WireKey key_;
  OverlapCounts& counts_;
  std::array<PendingReduction, receive_slots> flights_;
  std::size_t oldest_ = 0, in_flight_ = 0;
  RunningSums sums_;
  std::vector<Summed> sent_;  ///< by gradient slot
  Event summed_;              ///< behind the last local sum of the step
};

}  // namespace tessera
