#include "kernels/quantize/measure.hpp"

#include "kernels/base/launch.hpp"
#include "kernels/quantize/measure_patch.hpp"

namespace tessera {
namespace {

using quantizer::measure::Job;
using quantizer::measure::Kind;
using quantizer::measure::Stage;

QuantizerSums* sums_at(const Tensor& sums) {
  require(sums.type == DType::u64 && sums.elements() == QuantizerSums::words, "measure",
          "sums are u64 [QuantizerSums::words]");
  return static_cast<QuantizerSums*>(sums.data);
}

/// A job over whole matrices [members, rows, columns] of which positions [first, first + n) are there.
Job job_over(formats::Matrix m, std::int64_t members, std::int64_t first, std::int64_t n) {
  Job job{};
  job.d.matrix = m;
  job.d.members = members;
  job.d.stride = m.elements();
  job.d.begin = first;
  job.d.end = first + n;
  job.patches.down = static_cast<std::int32_t>(formats::tiles_along(m.rows, quantizer::patch_edge));
  job.patches.across = static_cast<std::int32_t>(formats::tiles_along(m.columns, quantizer::patch_edge));
  job.patches.count = members * job.patches.down * job.patches.across;
  return job;
}

Job job_of(const MasterPart& part) {
  const std::int64_t n = part.values.elements();
  require(part.values.type == DType::f32 && part.first >= 0 && part.first + n <= part.members * part.matrix.elements(),
          "measure", "masters are f32, and lie in their matrices");
  Job job = job_over(part.matrix, part.members, part.first, n);
  job.d.values = static_cast<std::byte*>(part.values.data);
  return job;
}

std::uint16_t* tops_at(const Tensor& tops, std::int64_t entries) {
  require(tops.type == DType::bf16 && tops.elements() == entries, "measure", "tops are bf16 [block_tops()]");
  return static_cast<std::uint16_t*>(tops.data);
}

/// A job over a part whose blocks' and members' amaxes are complete.
Job job_with_amaxes(FormatId format, Side side, const MasterPart& part, const Tensor& tops, const Tensor& amaxes,
                    const Tensor& errors) {
  Job job = job_of(part);
  job.tops = tops_at(tops, block_tops(format, side, part.matrix, part.members));
  require(amaxes.type == DType::f32 && amaxes.elements() == part.members, "measure", "amaxes are f32 [members]");
  job.amax = traits_of(format).tensor_amax ? amaxes.as<float>() : nullptr;
  const std::int64_t entries = block_errors(format, side, part.matrix, part.members);
  require(entries == 0 || (errors.type == DType::u64 && errors.elements() == entries), "measure",
          "errors are u64 [block_errors()]");
  job.errors = entries > 0 ? static_cast<std::uint64_t*>(errors.data) : nullptr;
  return job;
}

const std::uint16_t* stored(const Tensor& t) {
  require(t.type == DType::bf16, "measure", "activations are computed from bf16");
  return static_cast<const std::uint16_t*>(t.data);
}

/// Points a job to what a quantizer reads.
Kind place_input(Job& job, const Tensor& values, const QuantizerInput& input) {
  const auto read = [&](const Tensor& first, const Tensor& pre, Kind kind) {
    job.d.values = reinterpret_cast<std::byte*>(const_cast<std::uint16_t*>(stored(first)));
    job.d.pre = pre ? stored(pre) : nullptr;
    return kind;
  };
  if (const auto* x = std::get_if<Gelu>(&input)) return read(x->pre, {}, Kind::gelu);
  if (const auto* x = std::get_if<GeluGradient>(&input)) return read(x->dy, x->pre, Kind::gelu_gradient);
  if (const auto* x = std::get_if<Swiglu>(&input)) return read(x->gate_up, x->gate_up, Kind::swiglu);
  if (const auto* x = std::get_if<SwigluGradient>(&input)) return read(x->gate_up, x->dy, Kind::swiglu_gradient);
  return read(values, {}, Kind::bf16);
}

}  // namespace

void measure_copy(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose, Side side,
                  const QuantizerInput& input, const Tensor& tokens, const Tensor& sums) {
  require(matrix.members == 1 && purpose.role != Purpose::Role::weight, "measure_copy",
          "of one activation or gradient");
  require(!tokens || (tokens.type == DType::i32 && tokens.elements() == matrix.matrix.rows), "measure_copy",
          "tokens are i32 [rows]");
  Job job = job_over(matrix.matrix, 1, 0, matrix.matrix.elements());
  const Kind kind = place_input(job, matrix.values, input);
  const Copy& copy = side == Side::rowwise ? matrix.rowwise : matrix.columnwise;
  job.rotates = traits_of(format).hadamard && purpose.rotates && side == Side::columnwise;
  job.at_random = traits_of(format).may_draw && purpose.draws;
  job.tokens = tokens ? tokens.as<std::int32_t>() : nullptr;
  job.amax = copy.amax ? copy.amax.as<float>() : nullptr;
  require(job.amax != nullptr || !traits_of(format).tensor_amax, "measure_copy", "the copy has been made");
  job.d.seed = matrix.draws.seed;
  job.d.draws[0] = matrix.draws.rowwise;
  job.d.draws[1] = matrix.draws.columnwise;
  job.d.step = matrix.draws.step ? matrix.draws.step.as<std::uint64_t>() : nullptr;
  job.d.first_row = matrix.draws.first_row;
  job.d.rows = matrix.draws.rows ? matrix.draws.rows.as<std::int64_t>() : nullptr;
  require(!job.at_random || job.d.step != nullptr, "measure_copy", "random numbers need a step");
  job.sums = sums_at(sums);
  quantizer::measure::launch(stream, format, side, kind, Stage::whole, job);
}

std::int64_t block_tops(FormatId format, Side side, formats::Matrix matrix, std::int64_t members) {
  return members * traits_of(format).blocks(side, matrix).elements();
}

void raise_tops(Stream& stream, FormatId format, Side side, const MasterPart& part, const Tensor& tops) {
  Job job = job_of(part);
  job.tops = tops_at(tops, block_tops(format, side, part.matrix, part.members));
  quantizer::measure::launch(stream, format, side, Kind::master, Stage::tops, job);
}

void amaxes_of_tops(Stream& stream, const Tensor& tops, const Tensor& amaxes) {
  require(tops.type == DType::bf16 && amaxes.type == DType::f32 && tops.elements() % amaxes.elements() == 0,
          "amaxes_of_tops", "tops are bf16, as many for each f32 amax");
  const auto* const of_blocks = static_cast<const std::uint16_t*>(tops.data);
  float* const out = amaxes.as<float>();
  const std::int64_t n = tops.elements() / amaxes.elements();
  launch_rows(
      stream, "measure: members", amaxes.elements(), KOKKOS_LAMBDA(const Row& row, std::int64_t member) {
        const std::uint16_t* const mine = of_blocks + member * n;
        const std::uint32_t most =
            row.max<std::uint32_t>(n, [=](std::int64_t i) { return static_cast<std::uint32_t>(mine[i]); });
        row.once([=] { out[member] = std::bit_cast<float>(most << 16); });
      });
}

std::int64_t block_errors(FormatId format, Side side, formats::Matrix matrix, std::int64_t members) {
  return traits_of(format).chooses ? 2 * block_tops(format, side, matrix, members) : 0;
}

void add_errors(Stream& stream, FormatId format, Side side, const MasterPart& part, const Tensor& tops,
                const Tensor& amaxes, const Tensor& errors) {
  if (!traits_of(format).chooses) return;
  quantizer::measure::launch(stream, format, side, Kind::master, Stage::errors,
                             job_with_amaxes(format, side, part, tops, amaxes, errors));
}

void measure_part(Stream& stream, FormatId format, Side side, const MasterPart& part, const Tensor& tops,
                  const Tensor& amaxes, const Tensor& errors, const Tensor& sums) {
  Job job = job_with_amaxes(format, side, part, tops, amaxes, errors);
  job.sums = sums_at(sums);
  quantizer::measure::launch(stream, format, side, Kind::master, Stage::part, job);
}

}  // namespace tessera
