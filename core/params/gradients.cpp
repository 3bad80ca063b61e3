#include "core/params/gradients.hpp"

#include <algorithm>

#include "kernels/convert/convert.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

Gradients::Gradients(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Usage& usage,
                     Mesh& mesh, const SyncRules& rules)
    : registry_(registry), layout_(layout), mesh_(mesh), rules_(rules) {
  for (const Bucket& bucket : layout.buckets())
    storage_.push_back(device.allocate(Category::gradients, DType::f32, {bucket.size.value}));
  for (int writes : usage.writes) parameters_.push_back({writes * rules.micro_batches, 0});
  for (std::size_t g = 0; g < layout.groups().size(); ++g) groups_.push_back({GradientMachine(static_cast<int>(g)), 0});
  if (mesh.world().size() > 1) prepare_exchanges(device);
  restart();
}

void Gradients::prepare_exchanges(Device& device) {
  std::int64_t largest = 0;
  for (const Tensor& storage : storage_) largest = std::max(largest, storage.elements());
  const bool by_rank = rules_.order == ReduceOrder::rank;
  std::array<Tensor, ring> received;
  if (by_rank)
    for (Tensor& slot : received) slot = device.allocate(Category::staging, DType::f32, {largest});
  for (const BucketGroup& group : layout_.groups()) {
    for (const Tensor& slot : received) {
      exchanges_.emplace_back();
      std::int64_t offset = 0;
      for (int b : group.buckets) {
        const Bucket& bucket = layout_.buckets()[static_cast<std::size_t>(b)];
        const std::int64_t mine = bucket.slice(mesh_.ranks());
        exchanges_.back().push_back(
            by_rank ? Exchange{storage(b), slot.flat(offset, mine * bucket.ranks()).view({bucket.ranks(), mine}),
                               bucket.counts, bucket.begins}
                    : Exchange{{}, storage(b), bucket.counts, bucket.begins});
        offset += mine * bucket.ranks();
      }
    }
  }
}

void Gradients::restart() {
  oldest_ = 0;  // nothing is in flight: every step fills the ring's slots in the same order
  for (Group& group : groups_) group.waiting = 0;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    parameters_[p].written = 0;
    if (parameters_[p].expected > 0)
      ++groups_[static_cast<std::size_t>(layout_.group_of({static_cast<int>(p)}))].waiting;
  }
}

Tensor Gradients::shard(int bucket) const {
  const Bucket& b = layout_.buckets()[static_cast<std::size_t>(bucket)];
  return storage(bucket).flat(b.slice_begin(mesh_.ranks()), b.slice(mesh_.ranks()));
}

Gradient Gradients::slot(ParamId param) {
  Group& group = groups_[static_cast<std::size_t>(layout_.group_of(param))];
  if (group.machine.state() != GradientState::accumulating) group.machine.to(GradientState::accumulating);
  const Placement& place = layout_.place(param);
  const ParamSpec& spec = registry_[param];
  const float beta = parameters_[static_cast<std::size_t>(param.value)].written == 0 ? 0.0f : 1.0f;
  return {storage(place.bucket).flat(place.offset.value, spec.member_elements()).view(spec.member), beta, spec.members,
          layout_.member_stride(param)};
}

void Gradients::written(Stream& stream, ParamId param) {
  Parameter& parameter = parameters_[static_cast<std::size_t>(param.value)];
  if (++parameter.written < parameter.expected) return;
  require(parameter.written == parameter.expected, "Gradients",
          "a gradient got more contributions than the dry pass saw");
  const int group = layout_.group_of(param);
  if (--groups_[static_cast<std::size_t>(group)].waiting == 0 && rules_.reduce == Overlap::on) begin(stream, group);
}

/// A bucket's gaps and padding, and parameters that no micro-batch touched, may hold anything from steps before.
void Gradients::fill_unwritten(Stream& stream, const Bucket& bucket, const Tensor& storage) {
  std::int64_t end = 0;
  for (const Placement& p : bucket.members) {
    if (parameters_[static_cast<std::size_t>(p.param.value)].written == 0) continue;
    if (p.offset.value > end) clear(stream, storage.flat(end, p.offset.value - end));
    end = (p.offset + p.size).value;
  }
  if (bucket.size.value > end) clear(stream, storage.flat(end, bucket.size.value - end));
}

void Gradients::begin(Stream& stream, int g) {
  Group& group = groups_[static_cast<std::size_t>(g)];
  const BucketGroup& members = layout_.groups()[static_cast<std::size_t>(g)];
  group.machine.to(GradientState::reducing);
  for (int b : members.buckets) fill_unwritten(stream, layout_.buckets()[static_cast<std::size_t>(b)], storage(b));
  Communicator& communicator = mesh_.of(members.processes);
  if (communicator.size() == 1) return;
  if (in_flight_ == ring) finish_oldest(stream);
  const int slot = (oldest_ + in_flight_++) % ring;
  const auto& exchanges = exchanges_[static_cast<std::size_t>(g * ring + slot)];
  Flight& flight = flights_[static_cast<std::size_t>(slot)];
  flight.group = g;
  const Collective how = rules_.order == ReduceOrder::rank ? Collective::all_to_all : Collective::reduce_scatter;
  flight.pending = communicator.submit(stream, {how, exchanges, g, "reduce-scatter"});
  flight.launches = stream.launches();
}

void Gradients::finish_oldest(Stream& stream) {
  const int slot = oldest_;
  Flight& flight = flights_[static_cast<std::size_t>(slot)];
  if (stream.launches() > flight.launches) ++overlapped_;
  flight.pending.wait(stream);
  if (rules_.order == ReduceOrder::rank) {
    const auto& exchanges = exchanges_[static_cast<std::size_t>(flight.group * ring + slot)];
    const auto& buckets = layout_.groups()[static_cast<std::size_t>(flight.group)].buckets;
    for (std::size_t i = 0; i < buckets.size(); ++i) sum_in_order(stream, shard(buckets[i]), exchanges[i].receive);
  }
  oldest_ = (oldest_ + 1) % ring;
  --in_flight_;
}

void Gradients::reduce(Stream& stream) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const GradientState state = groups_[g].machine.state();
    if (state == GradientState::accumulating || state == GradientState::empty) {
      begin(stream, static_cast<int>(g));
      if (rules_.reduce == Overlap::off && in_flight_ > 0) finish_oldest(stream);
    }
  }
  while (in_flight_ > 0) finish_oldest(stream);
  for (Group& group : groups_) group.machine.to(GradientState::reduced);
}

void Gradients::drop() {
  while (in_flight_ > 0) {
    flights_[static_cast<std::size_t>(oldest_)].pending = Pending();
    oldest_ = (oldest_ + 1) % ring;
    --in_flight_;
  }
  for (Group& group : groups_) {
    if (group.machine.state() == GradientState::reducing) group.machine.to(GradientState::reduced);
    if (group.machine.state() != GradientState::empty) group.machine.to(GradientState::empty);
  }
  restart();
}

void Gradients::release() {
  for (Group& group : groups_) group.machine.to(GradientState::empty);
  restart();
}

}  // namespace tessera
