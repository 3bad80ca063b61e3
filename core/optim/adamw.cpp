#include "core/optim/adamw.hpp"

#include <cstddef>
#include <optional>

#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

// The counters' words, in their order, are the AdamWClock that the kernel advances.
static_assert(sizeof(AdamWClock) == 3 * sizeof(std::uint64_t) && offsetof(AdamWClock, t) == 0 &&
              offsetof(AdamWClock, beta1_power) == 8 && offsetof(AdamWClock, beta2_power) == 16);

/// Number of runs of equal weight decay in a whole bucket: an upper bound for any slice of it.
std::int64_t runs_of(const ParamRegistry& registry, const Bucket& bucket) {
  std::int64_t runs = 0;
  std::optional<bool> before;
  for (const Placement& place : bucket.members) {
    const bool now = decays(registry[place.param].role);
    if (before != now) ++runs;
    before = now;
  }
  return runs;
}

}  // namespace

std::vector<RuleCounter> fresh_adamw_counters() {
  const AdamWClock start;
  return {{"t", start.t}, {"beta1_power", start.beta1_power}, {"beta2_power", start.beta2_power}};
}

AdamW::AdamW(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
             std::vector<BucketId> buckets, const AdamWCoefficients& coefficients, double weight_decay,
             DType moments)
    : Rule(std::move(buckets)), device_(device), coefficients_(coefficients) {
  std::int64_t most_runs = 0;
  for (BucketId b : this->buckets()) {
    const Bucket& bucket = layout.buckets()[b];
    const Shape shape{bucket.slice(ranks)};
    most_runs += runs_of(registry, bucket);
    m_.push_back({b, device.allocate(Category::optimizer, moments, shape)});
    v_.push_back({b, device.allocate(Category::optimizer, moments, shape)});
    add_runs(registry, layout.shard_ranges(b, ranks), weight_decay);
  }
  table_memory_ = device.allocate(Category::optimizer, DType::u8, {AdamWTable::bytes_of(most_runs)});
}

void AdamW::add_runs(const ParamRegistry& registry, const std::vector<ShardRange>& pieces, double weight_decay) {
  const std::size_t slice = m_.size() - 1;
  for (const ShardRange& piece : pieces) {
    const auto decay = static_cast<float>(decays(registry[piece.param].role) ? weight_decay : 0.0);
    if (runs_.empty() || runs_.back().slice != slice || runs_.back().weight_decay != decay)
      runs_.push_back({slice, piece.shard.value, 0, decay});
    runs_.back().count = (piece.shard + piece.count).value - runs_.back().begin;
  }
}

void AdamW::initialise(Stream& stream) {
  for (const BucketSlice& slice : m_) clear(stream, slice.values);
  for (const BucketSlice& slice : v_) clear(stream, slice.values);
}

void AdamW::place_table(Stream& stream, const Clipped& gradients, const Masters& masters) {
  std::vector<const void*> addresses;
  for (BucketId b : buckets())
    for (const void* address : {masters.shard(b).data, gradients.shard(b).data, gradients.weight_shard(b).data})
      addresses.push_back(address);
  if (addresses == addresses_) return;
  require(addresses_.empty(), "AdamW", "a slice of masters, gradients or weights has moved since the first step");
  std::vector<AdamWRange> runs;
  for (const Run& run : runs_) {
    const auto part = [&](const Tensor& slice) { return slice ? slice.flat(run.begin, run.count) : slice; };
    const BucketId b = m_[run.slice].bucket;
    runs.push_back({part(masters.shard(b)), part(m_[run.slice].values), part(v_[run.slice].values),
                    part(gradients.shard(b)), run.weight_decay, part(gradients.weight_shard(b))});
  }
  table_ = AdamWTable(runs);
  table_.bind(table_memory_.flat(0, table_.bytes()));
  device_.upload(stream, table_);
  addresses_ = std::move(addresses);
}

void AdamW::step(Stream& stream, const Clipped& gradients, const Masters& masters, const RulePlaces& places) {
  place_table(stream, gradients, masters);
  adamw_step(stream, coefficients_, table_, static_cast<AdamWClock*>(places.counters.data), gradients.clip(),
             places.rate);
}

void AdamW::visit_state(const SlotVisitor& visit) const {
  visit({"adamw/m", m_});
  visit({"adamw/v", v_});
}

void AdamW::visit_counters(const CounterVisitor& visit) const {
  for (const RuleCounter& counter : fresh_adamw_counters()) visit(counter);
}

}  // namespace tessera
