#pragma once
#include <span>

#include "core/params/sync_schedule.hpp"

namespace tessera {

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
