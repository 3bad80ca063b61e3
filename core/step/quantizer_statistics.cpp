#include "core/step/quantizer_statistics.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

double share(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

/// Carries digits, so that those of many ranks can be added.
void carry(std::uint64_t (&limbs)[ExactSum::limbs]) {
  std::uint64_t over = 0;
  for (std::uint64_t& limb : limbs) {
    const std::uint64_t all = limb + over;
    limb = all & 0xFFFFFFFFu;
    over = all >> 32;
  }
}

/// The sum in units of 2^-300; equal sums give equal bits.
double value_of(std::uint64_t (&limbs)[ExactSum::limbs]) {
  carry(limbs);
  double sum = 0;
  for (int i = ExactSum::limbs; i-- > 0;) sum += std::ldexp(static_cast<double>(limbs[i]), 32 * i);
  return sum;
}

/// Sides of a weight that are quantized from its values; others follow from these.
std::vector<Side> sides_of(FormatId format) {
  if (traits_of(format).columnwise == formats::Columnwise::requantized) return {Side::rowwise, Side::columnwise};
  return {Side::rowwise};
}

}  // namespace

float QuantizerLine::amax() const { return std::bit_cast<float>(static_cast<std::uint32_t>(sums.amax)); }

double QuantizerLine::relative_error() const {
  QuantizerSums carried = sums;
  const double values = value_of(carried.values), errors = value_of(carried.errors);
  return values == 0 ? 0 : std::sqrt(errors / values);
}

double QuantizerLine::saturated() const { return share(sums.saturated, finite()); }
double QuantizerLine::underflow() const { return share(sums.underflow, finite() - sums.zeros); }

QuantizerStatistics::QuantizerStatistics(Device& device, const StepPlan& plan) : device_(device) {
  std::int64_t tops = 0, members = 0;
  for (const Dataset& dataset : plan.registry.datasets()) {
    const ParamSpec& spec = plan.registry[dataset.params.front()];
    if (!spec.format.codes) continue;
    const Shape& shape = spec.canonical.shape;
    const formats::Matrix matrix{shape[shape.rank() - 2], shape[shape.rank() - 1]};
    weights_.push_back({spec.canonical.name, *spec.format.codes, matrix, shape.elements() / matrix.elements()});
    for (const Side side : sides_of(weights_.back().format))
      tops = std::max(tops, block_tops(weights_.back().format, side, matrix, weights_.back().members));
    members = std::max(members, weights_.back().members);
  }
  formats_.resize(weights_.size() * lines_of_weight);
  sums_ = device.allocate(Category::staging, DType::u64, {std::ssize(formats_), QuantizerSums::words});
  tops_ = device.allocate(Category::staging, DType::bf16, {tops});
  amaxes_ = device.allocate(Category::staging, DType::f32, {members});
}

std::size_t QuantizerStatistics::place_of(std::size_t weight, Purpose role, Side side) const {
  return weight * lines_of_weight + static_cast<std::size_t>(role) * 2 + static_cast<std::size_t>(side);
}

Tensor QuantizerStatistics::sums_of(std::size_t place) const {
  return sums_.flat(static_cast<std::int64_t>(place) * QuantizerSums::words, QuantizerSums::words);
}

void QuantizerStatistics::begin(Stream& stream, const StateDict& masters, Mesh& mesh) {
  clear(stream, sums_);
  std::ranges::fill(formats_, std::nullopt);
  for (std::size_t w = 0; w < weights_.size(); ++w) {
    const auto tensor = std::ranges::find_if(
        masters.tensors, [&](const StateTensor& t) { return t.slot == "model" && t.name == weights_[w].name; });
    require(tensor != masters.tensors.end(), "QuantizerStatistics", "every quantized weight has masters");
    measure_weight(stream, w, *tensor, mesh);
  }
}

void QuantizerStatistics::measure_weight(Stream& stream, std::size_t weight, const StateTensor& masters, Mesh& mesh) {
  const Weight& w = weights_[weight];
  const Tensor amaxes = amaxes_.flat(0, w.members);
  for (const Side side : sides_of(w.format)) {
    const Tensor tops = tops_.flat(0, block_tops(w.format, side, w.matrix, w.members));
    clear(stream, tops);
    for (const StateRange& range : masters.ranges)
      raise_tops(stream, w.format, side, {w.matrix, w.members, range.first, range.values}, tops);
    if (mesh.world().size() > 1) {
      // bf16 numbers >= 0 order as their bits.
      const Exchange exchange{{}, {tops.data, DType::u16, tops.shape}, {}, {}};
      mesh.world().submit(stream, {Collective::all_reduce_max, {&exchange, 1}, -1, statistics_label}).wait(stream);
    }
    amaxes_of_tops(stream, tops, amaxes);
    const std::size_t place = place_of(weight, Purpose::weight, side);
    formats_[place] = w.format;
    for (const StateRange& range : masters.ranges)
      measure_part(stream, w.format, side, {w.matrix, w.members, range.first, range.values}, tops, amaxes,
                   sums_of(place));
  }
}

void QuantizerStatistics::made(Stream& stream, const MadeFactor& factor) {
  if (!seen_.insert({factor.weight, factor.purpose, factor.side, factor.first_token}).second) return;
  const auto weight = std::ranges::find(weights_, factor.weight, &Weight::name);
  require(weight != weights_.end(), "QuantizerStatistics", "a factor's weight is quantized");
  const std::size_t place = place_of(static_cast<std::size_t>(weight - weights_.begin()), factor.purpose, factor.side);
  formats_[place] = factor.format;
  measure_copy(stream, factor.format, factor.matrix, factor.purpose, factor.side, factor.input, factor.tokens,
               sums_of(place));
}

std::vector<QuantizerLine> QuantizerStatistics::lines(Stream& stream) {
  std::vector<QuantizerSums> sums(formats_.size());
  device_.download(stream, sums.data(), sums_);
  std::vector<QuantizerLine> lines;
  for (std::size_t w = 0; w < weights_.size(); ++w)
    for (const Purpose role : {Purpose::weight, Purpose::activation, Purpose::gradient})
      for (const Side side : {Side::rowwise, Side::columnwise}) {
        const std::size_t place = place_of(w, role, side);
        if (!formats_[place]) continue;
        carry(sums[place].values);
        carry(sums[place].errors);
        lines.push_back({weights_[w].name, role, side, *formats_[place], sums[place]});
      }
  return lines;
}

}  // namespace tessera
