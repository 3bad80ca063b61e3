#include "core/comm/mesh.hpp"

#include <algorithm>

namespace tessera {

Mesh::Mesh(const Ranks& ranks, const Make& make) : ranks_(ranks) {
  communicators_.push_back(make({"", ranks.world, 0}));
  expert_data_ = add({"expert-data", ranks.expert_data, ranks.experts.rank}, make);
  experts_ = add({"experts", ranks.experts, ranks.world.rank - ranks.experts.rank}, make);
}

std::size_t Mesh::add(const RankGroup& group, const Make& make) {
  if (group.place == ranks_.world) return 0;
  communicators_.push_back(group.place.size == 1 ? self_communicator() : make(group));
  return communicators_.size() - 1;
}

bool Mesh::on_streams() const {
  return std::ranges::all_of(communicators_, [](const auto& one) { return one->on_streams(); });
}

void Mesh::wrap(const Wrap& wrapper) {
  for (std::unique_ptr<Communicator>& one : communicators_) one = wrapper(std::move(one));
}

Mesh self_mesh() {
  return Mesh({}, [](const RankGroup&) { return self_communicator(); });
}

Mesh planning_mesh(const Ranks& ranks) {
  return Mesh(ranks,
              [](const RankGroup& group) { return planning_communicator(group.place.rank, group.place.size); });
}

}  // namespace tessera
