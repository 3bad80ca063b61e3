#pragma once
#include <span>

#include "core/params/param_group.hpp"
#include "core/params/visits.hpp"

/// Pools of full sharding: memory that groups share. Weights are whole there during a visit, gradients from a
/// micro-batch's first contribution to their reduction. Slots are planned, so that a group's addresses never change and
/// steps can be captured. Both functions allocate. Local.
namespace tessera {

/// Places weights: two slots a process group, each as large as the largest of `visits` needs, derived copies included.
/// Every pooled group has a place in both.
void place_weights(Device& device, const ParamRegistry& registry, const ParamLayout& layout,
                   IndexedBy<GroupId, ParamGroup>& groups, std::span<const Visit> visits);

/// Places gradients: the fewest slots a process group with which one group can reduce while the next accumulates. That
/// is two, and a third for gradients that live long (a tied embedding's, from head to embedding). `contributions` are
/// those of a micro-batch, in order.
void place_gradients(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                     std::span<const Contribution> contributions);

}  // namespace tessera
