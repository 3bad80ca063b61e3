#pragma once
#include <span>

#include "core/params/param_group.hpp"
#include "core/params/visits.hpp"

/// Memory that groups whose ranks keep slices share: weights are whole there during a visit, gradients from a
/// micro-batch's first contribution to their reduction. Planned, so that addresses never change. Both allocate; local.
namespace tessera {

/// Two slots a process group, each as large as what is held at once in the largest of `visits`, derived copies
/// included; every pooled group has a place in both.
void place_weights(Device& device, const ParamRegistry& registry, const ParamLayout& layout,
                   IndexedBy<GroupId, ParamGroup>& groups, std::span<const Visit> visits);

/// As few slots a process group as let a group reduce while the next one accumulates: two, and one for each that lives
/// long (a tied embedding, from head to embedding). `contributions` are those of a micro-batch, in order.
void place_gradients(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                     std::span<const ParamId> contributions);

}  // namespace tessera
