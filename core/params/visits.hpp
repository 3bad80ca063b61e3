#pragma once
#include <span>
#include <vector>

#include "core/params/planes.hpp"
#include "core/params/usage.hpp"

namespace tessera {

/// One stay of a group's weights in a slot of the pool (full sharding): all-gathered before the first access, released
/// after the last.
struct Visit {
  GroupId group;
  Sides sides = Sides::none;  ///< copies of codes to gather; values travel with each visit
  Half half = Half::forward;  ///< half of the micro-batch in which its first access is
  bool operator==(const Visit&) const = default;

  /// Whether an access to `asked` that needs `needed` can use this visit's weights.
  bool serves(GroupId asked, Sides needed) const { return group == asked && contains(sides, needed); }
};

/// The visits of one pass over a micro-batch, ordered by their first accesses. A maximal run of accesses to one module
/// or block (BucketGroup::unit) is one visit of each group in it; two visits if the copies travel apart and all
/// accesses to one copy come before all to the other. A pure function; the same on all ranks.
std::vector<Visit> visits_of(std::span<const Access> accesses, const ParamRegistry& registry, const ParamLayout& layout,
                             const WeightRules& rules);

/// Position of a pass in the visits of one process group. Slots alternate and begin anew with each step, so that a
/// replayed step meets the same addresses. A visit whose weights the visit before holds already (a block's experts at
/// the turn from forward to backward, or to the next micro-batch) is skipped: they stay in their slot.
class Walk {
 public:
  Walk() = default;
  /// A walk `passes` times through `visits`, which must outlive it.
  Walk(std::span<const Visit> visits, int passes) : visits_(visits), end_(std::ssize(visits) * passes) {}

  /// The visit under way, or null.
  const Visit* current() const { return at(current_); }
  const Visit* next() const { return at(following()); }
  int current_slot() const { return slot_; }
  int next_slot() const { return (slot_ + 1) % weight_slots; }
  void advance() {
    current_ = following();
    slot_ = next_slot();
  }

 private:
  const Visit* at(std::int64_t number) const {
    return number >= 0 && number < end_ ? &visits_[static_cast<std::size_t>(number % std::ssize(visits_))] : nullptr;
  }
  std::int64_t following() const {
    std::int64_t number = current_ + 1;
    const Visit* const now = current();
    while (now && at(number) && now->serves(at(number)->group, at(number)->sides)) ++number;
    return number;
  }

  std::span<const Visit> visits_;
  std::int64_t end_ = 0, current_ = -1;
  int slot_ = 1;
};

}  // namespace tessera
