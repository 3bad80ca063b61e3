#include "core/step/quantizer_statistics.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/params/labels.hpp"
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

bool requantized(FormatId format) { return traits_of(format).columnwise == formats::Columnwise::requantized; }

/// The side whose blocks a copy has: those of a copy that is not quantized on its own are the rowwise one's.
Side blocks_of(FormatId format, Side side) { return requantized(format) ? side : Side::rowwise; }

/// Copies that a treatment makes. A weight's columnwise copy that follows from its rowwise one is none.
std::vector<CopyName> copies_of(const Treatment& t) {
  using enum Purpose::Role;
  std::vector<CopyName> copies;
  const auto add = [&](Purpose::Role role, Side side, const Treatment::Format& format) {
    if (format) copies.push_back({role, side, *format});
  };
  add(weight, Side::rowwise, t.weight.forward);
  if (t.weight.dgrad != t.weight.forward || (t.weight.dgrad && requantized(*t.weight.dgrad)))
    add(weight, Side::columnwise, t.weight.dgrad);
  add(activation, Side::rowwise, t.activation.forward);
  add(activation, Side::columnwise, t.activation.wgrad);
  add(gradient, Side::rowwise, t.gradient.dgrad);
  add(gradient, Side::columnwise, t.gradient.wgrad);
  return copies;
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
  std::int64_t tops = 0, members = 0, errors = 0;
  for (const Dataset& dataset : plan.registry.datasets()) {
    const ParamSpec& spec = plan.registry[dataset.params.front()];
    const Shape& shape = spec.canonical.shape;
    for (const CopyName& copy : copies_of(spec.treatment)) {
      const formats::Matrix matrix{shape[shape.rank() - 2], shape[shape.rank() - 1]};
      lines_.push_back({spec.canonical.name, copy, matrix, shape.elements() / matrix.elements()});
      if (copy.role != Purpose::Role::weight) continue;
      const Side side = blocks_of(copy.format, copy.side);
      tops = std::max(tops, block_tops(copy.format, side, matrix, lines_.back().members));
      errors = std::max(errors, block_errors(copy.format, side, matrix, lines_.back().members));
      members = std::max(members, lines_.back().members);
    }
  }
  sums_ = device.allocate(Category::staging, DType::u64, {std::ssize(lines_), QuantizerSums::words});
  tops_ = device.allocate(Category::staging, DType::bf16, {tops});
  amaxes_ = device.allocate(Category::staging, DType::f32, {members});
  errors_ = device.allocate(Category::staging, DType::u64, {errors});
}

Tensor QuantizerStatistics::sums_of(std::size_t line) const {
  return sums_.flat(static_cast<std::int64_t>(line) * QuantizerSums::words, QuantizerSums::words);
}

void QuantizerStatistics::begin(Stream& stream, const StateDict& masters, Mesh& mesh) {
  clear(stream, sums_);
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    if (lines_[i].copy.role != Purpose::Role::weight) continue;
    const auto tensor = std::ranges::find_if(
        masters.tensors, [&](const StateTensor& t) { return t.slot == "model" && t.name == lines_[i].matrix; });
    require(tensor != masters.tensors.end(), "QuantizerStatistics", "every quantized weight has masters");
    measure_weight(stream, i, *tensor, mesh);
  }
}

void QuantizerStatistics::measure_weight(Stream& stream, std::size_t line, const StateTensor& masters, Mesh& mesh) {
  const Line& w = lines_[line];
  const FormatId format = w.copy.format;
  const Side side = blocks_of(format, w.copy.side);
  const Tensor amaxes = amaxes_.flat(0, w.members), tops = tops_.flat(0, block_tops(format, side, w.shape, w.members)),
               errors = errors_.flat(0, block_errors(format, side, w.shape, w.members));
  const auto each_part = [&](const auto& f) {
    for (const StateRange& range : masters.ranges) f(MasterPart{w.shape, w.members, range.first, range.values});
  };
  const auto over_ranks = [&](Collective collective, const Tensor& words) {
    if (mesh.world().size() == 1) return;
    const Exchange exchange{{}, words, {}, {}};
    mesh.world().submit(stream, {collective, {&exchange, 1}, -1, label::statistics}).wait(stream);
  };
  clear(stream, tops);
  each_part([&](const MasterPart& part) { raise_tops(stream, format, side, part, tops); });
  over_ranks(Collective::all_reduce_max, {tops.data, DType::u16, tops.shape});  // numbers >= 0 order as their bits
  amaxes_of_tops(stream, tops, amaxes);
  if (errors.elements() > 0) {
    clear(stream, errors);
    each_part([&](const MasterPart& part) { add_errors(stream, format, side, part, tops, amaxes, errors); });
    over_ranks(Collective::all_reduce_sum, errors);
  }
  each_part([&](const MasterPart& part) {
    measure_part(stream, format, side, part, tops, amaxes, errors, sums_of(line));
  });
}

void QuantizerStatistics::made(Stream& stream, const MadeFactor& factor) {
  if (!factor.format) return;
  const CopyName copy{factor.purpose.role, factor.side, *factor.format};
  const auto line = std::ranges::find_if(
      lines_, [&](const Line& l) { return l.copy == copy && l.matrix == factor.weight; });
  require(line != lines_.end(), "QuantizerStatistics", "a factor is a copy that its weight's treatment makes");
  const auto index = static_cast<std::size_t>(line - lines_.begin());
  if (!seen_.emplace(index, factor.first_token).second) return;  // mutation: recomputed_factors_are_measured_twice
  measure_copy(stream, *factor.format, factor.matrix, factor.purpose, factor.side, factor.input, factor.tokens,
               sums_of(index));
}

std::vector<QuantizerLine> QuantizerStatistics::lines(Stream& stream) {
  std::vector<QuantizerSums> sums(lines_.size());
  device_.download(stream, sums.data(), sums_);
  std::vector<QuantizerLine> lines;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    carry(sums[i].values);
    carry(sums[i].errors);
    lines.push_back({lines_[i].matrix, lines_[i].copy, sums[i]});
  }
  return lines;
}

}  // namespace tessera
