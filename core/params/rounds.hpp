#pragma once
#include <cstddef>
#include <vector>

#include "core/layout/layout.hpp"
#include "core/params/sync_schedule.hpp"

namespace tessera {

/// Counts contributions to gradients in the rounds of a step by a schedule. It is the only place that knows which
/// reduction they go to, and when it is complete. `schedule` and `layout` must outlive it.
class Rounds {
 public:
  Rounds(const SyncSchedule& schedule, const ParamLayout& layout)
      : contributions_(schedule.contributions),
        layout_(layout),
        params_(schedule.contributions.size()),
        groups_(layout.groups().size()) {
    for (const Reduction& one : schedule.reductions) groups_[one.group].reductions.push_back(&one);
    restart();
  }

  /// The reduction of the round that is filled, or comes next; null behind the last.
  const Reduction* now(GroupId group) const {
    const Group& own = groups_[group];
    return own.round < own.reductions.size() ? own.reductions[own.round] : nullptr;
  }
  /// Whether any contribution to this gradient has been counted in its round.
  bool written(ParamId param) const { return params_[param].written > 0; }
  bool written(GroupId group) const {
    for (BucketId b : layout_.groups()[group].buckets)
      for (const Placement& p : layout_.buckets()[b].parameters())
        if (written(p.param)) return true;
    return false;
  }
  /// Whether the round expects another contribution to this gradient.
  bool expects(ParamId param) const { return params_[param].written < params_[param].expected; }
  /// Counts a contribution that is expected. Returns whether it was the last one of its group's round.
  bool completes(ParamId param) {
    Count& count = params_[param];
    // mutation: a_tied_embedding_is_reduced_twice
    return ++count.written == count.expected && --groups_[layout_.group_of(param)].unfinished == 0;
  }

  /// Ends a group's round and begins the next one: nothing is written yet.
  void next(GroupId group) {
    ++groups_[group].round;
    begin(group);
  }
  /// Begins the first round of every group.
  void restart() {
    for (GroupId group : groups_.ids()) {
      groups_[group].round = 0;
      begin(group);
    }
  }

 private:
  struct Count {
    int expected = 0, written = 0;
  };
  struct Group {
    std::vector<const Reduction*> reductions;
    std::size_t round = 0;
    int unfinished = 0;  ///< parameters that still expect a contribution
  };
  void begin(GroupId group) {
    const int micro_batches = now(group) ? now(group)->micro_batches : 0;
    groups_[group].unfinished = 0;
    for (BucketId b : layout_.groups()[group].buckets)
      for (const Placement& p : layout_.buckets()[b].parameters()) {
        params_[p.param] = {contributions_[p.param] * micro_batches, 0};
        groups_[group].unfinished += params_[p.param].expected > 0 ? 1 : 0;
      }
  }

  const IndexedBy<ParamId, int>& contributions_;
  const ParamLayout& layout_;
  IndexedBy<ParamId, Count> params_;
  IndexedBy<GroupId, Group> groups_;
};

}  // namespace tessera
