#include "core/params/weights.hpp"

#include <algorithm>

namespace tessera {

Weights::Weights(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Usage& usage,
                 const Masters& masters, Mesh& mesh, Overlap overlap)
    : layout_(layout), masters_(masters), mesh_(mesh), overlap_(overlap) {
  wire_ = plain_wire();
  for (const Bucket& bucket : layout.buckets())
    storage_.push_back(device.allocate(Category::weights, bucket.key.format.plain, {bucket.size.value}));
  for (int p = 0; p < registry.size(); ++p) {
    const ParamSpec& spec = registry[{p}];
    const Placement& place = layout.place({p});
    const Tensor first =
        storage_[static_cast<std::size_t>(place.bucket)].flat(place.offset.value, spec.member_elements());
    operands_.push_back({first.view(spec.member), spec.members, layout.member_stride({p})});
  }
  for (std::size_t g = 0; g < layout.groups().size(); ++g) {
    groups_.push_back({WeightMachine(static_cast<int>(g)), {}, {}, 0, -1});
    for (int b : layout.groups()[g].buckets) {
      const Bucket& bucket = layout.buckets()[static_cast<std::size_t>(b)];
      groups_.back().exchanges.push_back({{}, storage_[static_cast<std::size_t>(b)], bucket.counts, bucket.begins});
    }
  }
  const auto append = [this](int group) {
    if (std::find(order_.begin(), order_.end(), group) == order_.end()) order_.push_back(group);
  };
  for (ParamId param : usage.order) append(layout.group_of(param));
  for (std::size_t g = 0; g < groups_.size(); ++g) append(static_cast<int>(g));  // unused ones are gathered last
  for (std::size_t i = 0; i + 1 < order_.size(); ++i) groups_[static_cast<std::size_t>(order_[i])].next = order_[i + 1];
}

Operand Weights::operand(Stream& stream, ParamId param, Side) {
  const int group = layout_.group_of(param);
  if (machine(group).state() != WeightState::ready) advance(stream, group);
  return operands_[static_cast<std::size_t>(param.value)];
}

void Weights::advance(Stream& stream, int g) {
  stage(stream, g);
  begin(stream, g);
  const int next = groups_[static_cast<std::size_t>(g)].next;
  if (overlap_ == Overlap::on && next >= 0) {
    stage(stream, next);
    begin(stream, next);
  }
  finish(stream, g);
}

void Weights::outdate() {
  for (Group& group : groups_)
    if (group.machine.state() == WeightState::ready) group.machine.to(WeightState::stale);
}

void Weights::stage(Stream& stream, int g) {
  Group& group = groups_[static_cast<std::size_t>(g)];
  if (group.machine.state() != WeightState::stale) return;
  for (int b : layout_.groups()[static_cast<std::size_t>(g)].buckets) {
    const Bucket& bucket = layout_.buckets()[static_cast<std::size_t>(b)];
    const Tensor mine = storage(b).flat(bucket.slice_begin(mesh_.ranks()), bucket.slice(mesh_.ranks()));
    wire_->stage(stream, mine, masters_.shard(b));
  }
  group.machine.to(WeightState::staged);
}

void Weights::begin(Stream& stream, int g) {
  Group& group = groups_[static_cast<std::size_t>(g)];
  if (group.machine.state() != WeightState::staged) return;
  Communicator& communicator = mesh_.of(layout_.groups()[static_cast<std::size_t>(g)].processes);
  if (communicator.size() > 1)
    group.pending = communicator.submit(stream, {Collective::all_gather, group.exchanges, g, "gather"});
  group.launches = stream.launches();
  group.machine.to(WeightState::in_flight);
}

void Weights::finish(Stream& stream, int g) {
  Group& group = groups_[static_cast<std::size_t>(g)];
  if (group.pending) {
    if (stream.launches() > group.launches) ++overlapped_;
    group.pending.wait(stream);
  }
  group.machine.to(WeightState::gathered);
  for (int b : layout_.groups()[static_cast<std::size_t>(g)].buckets) wire_->consume(stream, storage(b));
  group.machine.to(WeightState::ready);
  if (observer_) observer_(stream, g);
}

}  // namespace tessera
