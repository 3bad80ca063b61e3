#include "core/optim/muon.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

constexpr NewtonSchulzStep quintic[] = {{4.0848f, -6.8946f, 2.9270f},
                                        {3.9505f, -6.3029f, 2.6377f},
                                        {3.7418f, -5.5913f, 2.3037f},
                                        {2.8769f, -3.1427f, 1.2046f},
                                        {2.8366f, -3.0525f, 1.2012f}};
constexpr NewtonSchulzStep simple_step{3.4445f, -4.7750f, 2.0315f};
constexpr NewtonSchulzStep simple[] = {simple_step, simple_step, simple_step, simple_step, simple_step};
constexpr NewtonSchulzStep polar_express[] = {{8.2051f, -22.9019f, 16.4607f}, {4.0664f, -2.8612f, 0.5184f},
                                              {3.9096f, -2.8234f, 0.5250f},   {3.2856f, -2.4153f, 0.4853f},
                                              {2.2779f, -1.6198f, 0.3985f},   {1.8726f, -1.2307f, 0.3585f},
                                              {1.8564f, -1.2132f, 0.3568f},   {1.8750f, -1.2500f, 0.3750f}};

}  // namespace

std::span<const NewtonSchulzStep> steps_of(MuonCoefficients coefficients) {
  switch (coefficients) {
    case MuonCoefficients::quintic: return quintic;
    case MuonCoefficients::simple: return simple;
    case MuonCoefficients::polar_express: return polar_express;
  }
  return {};
}

double scale_of(MuonScale scale, std::int64_t out, std::int64_t in) {
  const auto rows = static_cast<double>(out), columns = static_cast<double>(in);
  switch (scale) {
    case MuonScale::spectral: return std::sqrt(std::max(rows, columns));
    case MuonScale::shape: return std::sqrt(std::max(1.0, rows / columns));
    case MuonScale::rms: return 0.2 * std::sqrt(std::max(rows, columns));
  }
  return 1;
}

Problems problems_with_muon(const ParamRegistry& registry) {
  Problems problems;
  bool any = false;
  for (const ParamSpec& spec : registry.specs()) {
    if (!is_matrix(spec.role)) continue;
    any = true;
    if (spec.member.rank() != 2)
      problems.add(Exit::deck, "optimizer.matrices: muon steps matrices, and " + spec.name + " " + spec.member.text() +
                                   " is neither a matrix nor a stack of them: use matrices: adamw");
  }
  if (!any) problems.add(Exit::deck, "optimizer.matrices: nothing in this model is a matrix for muon: use adamw");
  return problems;
}

Muon::Muon(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
           std::vector<BucketId> buckets, const OptimizerConfig& config)
    : Rule(std::move(buckets)),
      device_(device),
      momentum_rule_{config.muon.momentum, config.muon.nesterov},
      steps_(steps_of(config.muon.coefficients)),
      scale_(config.muon.scale),
      weight_decay_(config.weight_decay) {
  const DType type = type_of(config.moments);
  for (BucketId b : this->buckets()) {
    const Bucket& bucket = layout.buckets()[b];
    require(bucket.key.owner == OwnerKind::whole_matrix, "Muon", "steps buckets whose matrices are owned whole");
    momentum_.push_back({b, device.allocate(Category::optimizer, type, {bucket.slice(ranks)})});
    add_matrices(registry, layout.shard_ranges(b, ranks));
  }
  const auto matrices = std::ssize(owned_);
  table_memory_ = device.allocate(Category::optimizer, DType::u8, {MuonTable::bytes_of(matrices)});
  matrices_memory_ = device.allocate(Category::optimizer, DType::u8, {NewtonSchulzTable::bytes_of(matrices)});
}

void Muon::add_matrices(const ParamRegistry& registry, const std::vector<ShardRange>& ranges) {
  for (const ShardRange& range : ranges) {
    const ParamSpec& spec = registry[range.param];
    const bool whole = spec.member.rank() == 2 && range.count.value == spec.member_elements();
    require(whole, "Muon", "a range of a shard is a whole matrix");
    const Shape rows = spec.part_rows();
    std::int64_t begin = range.shard.value;
    for (int i = 0; i < rows.rank(); ++i) {
      owned_.push_back({momentum_.size() - 1, begin, {rows[i], spec.member[1]}});
      begin += rows[i] * spec.member[1];
    }
  }
}

void Muon::initialise(Stream& stream) {
  for (const BucketSlice& slice : momentum_) clear(stream, slice.values);
}

void Muon::place_tables(Stream& stream, const Clipped& gradients, const Masters& masters) {
  std::vector<const void*> addresses;
  for (BucketId b : buckets())
    for (const void* address : {masters.shard(b).data, gradients.shard(b).data}) addresses.push_back(address);
  if (addresses == addresses_) return;
  require(addresses_.empty(), "Muon", "a slice of masters or gradients has moved since the first step");
  std::vector<MuonPart> parts;
  std::vector<Tensor> matrices;
  for (const OwnedMatrix& matrix : owned_) {
    const auto of = [&](const Tensor& slice) { return slice.flat(matrix.begin, matrix.shape.elements()); };
    const BucketSlice& slice = momentum_[matrix.slice];
    parts.push_back({of(masters.shard(slice.bucket)), of(slice.values), of(gradients.shard(slice.bucket)),
                     scale_of(scale_, matrix.shape[0], matrix.shape[1])});
    matrices.push_back(parts.back().gradient.view(matrix.shape));
  }
  table_ = MuonTable(parts);
  matrices_ = NewtonSchulzTable(matrices);
  table_.bind(table_memory_);
  matrices_.bind(matrices_memory_);
  device_.upload(stream, table_);
  device_.upload(stream, matrices_);
  addresses_ = std::move(addresses);
}

void Muon::step(Stream& stream, const Clipped& gradients, const Masters& masters, const RulePlaces& places) {
  place_tables(stream, gradients, masters);
  muon_momentum(stream, momentum_rule_, table_, gradients.clip());
  newton_schulz(stream, steps_, matrices_);
  muon_update(stream, weight_decay_, table_, gradients.clip(), places.rate);
}

void Muon::visit_state(const SlotVisitor& visit) const { visit({"muon/momentum", momentum_}); }

}  // namespace tessera
