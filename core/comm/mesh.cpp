#include "core/comm/mesh.hpp"

#include <algorithm>

namespace tessera {

Mesh::Mesh(const Ranks& ranks, const Make& make) : ranks_(ranks) {
  communicators_.push_back(make({"", ranks.world, 0}));
  expert_data_ = add({"expert-data", ranks.expert_data, ranks.experts.rank}, make);
  experts_ = add({"experts", ranks.experts, ranks.world.rank - ranks.experts.rank}, make);
  inside_ = {0, expert_data_};
  if (ranks.sharding.size > 1) add_sharding_groups(make);
}

/// Dense parameters and experts have the same ranks across sharding groups, whose counts differ from number to number.
void Mesh::add_sharding_groups(const Make& make) {
  const RankIn dense = ranks_.of(ProcessGroup::dense, Level::inside);
  const RankIn expert = ranks_.of(ProcessGroup::expert, Level::inside);
  const int first = ranks_.world.rank - dense.rank;
  across_ = add({"across", ranks_.sharding, dense.rank, false}, make);
  const std::size_t inside = add({"inside", dense, first}, make);
  inside_ = {inside, expert == dense ? inside : add({"expert-inside", expert, first + ranks_.experts.rank}, make)};
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
