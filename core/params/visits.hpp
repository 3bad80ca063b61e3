#pragma once
#include <span>
#include <vector>

#include "core/params/planes.hpp"
#include "core/params/usage.hpp"

namespace tessera {

/// One stay of a group's weights in a slot of the pool: gathered before its first access, released behind its last.
struct Visit {
  GroupId group;
  Sides sides = Sides::none;  ///< copies of codes to gather; values travel with each visit
  Half half = Half::forward;  ///< of its first access
  bool operator==(const Visit&) const = default;

  /// Whether an access that needs `sides` is one of this visit's.
  bool serves(GroupId asked, Sides needed) const { return group == asked && contains(sides, needed); }
};

/// The visits of one pass over a micro-batch, in the order of their first accesses. A maximal run of accesses to one
/// module or block (BucketGroup::unit) is a visit of each group that it touches, or two: where all accesses to one copy
/// come before all to the other, and the copies travel apart. A pure function; the same on all ranks.
std::vector<Visit> visits_of(std::span<const Access> accesses, const ParamRegistry& registry, const ParamLayout& layout,
                             const WeightRules& rules);

/// How far a pass has come through the visits of one process group. Slots alternate, from the first of the step on, so
/// that a step that is repeated meets the same addresses. A visit that the one before it serves (experts of the last
/// block, backward, and of the first block in the next micro-batch) is left out: they stay where they are.
class Walk {
 public:
  Walk() = default;
  /// `passes` times through `visits`, which must outlive this.
  Walk(std::span<const Visit> visits, int passes) : visits_(visits), end_(std::ssize(visits) * passes) {}

  /// The visit under way, or null.
  const Visit* current() const { return at(current_); }
  const Visit* next() const { return at(following()); }
  int current_slot() const { return slot_; }
  int next_slot() const { return 1 - slot_; }
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
