#pragma once
#include <span>

#include "core/params/param_group.hpp"
#include "core/params/visits.hpp"

/// Pools of full sharding, memory that groups share: weights are whole there during a visit, gradients from a
/// micro-batch's first contribution to their reduction. Planned, so that addresses never change. Both allocate. Local.
namespace tessera {

/// Two slots a process group, each as large as what is held at once in the largest of `visits`, derived copies
/// included; every pooled group has a place in both.
void place_weights(Device& device, const ParamRegistry& registry, const ParamLayout& layout,
                   IndexedBy<GroupId, ParamGroup>& groups, std::span<const Visit> visits);

/// The fewest slots a process group with which one group reduces while the next accumulates: two, and one that lives
/// long (a tied embedding, from head to embedding). `contributions` are those of a micro-batch, in order.
void place_gradients(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                     std::span<const ParamId> contributions);

}  // namespace tessera
