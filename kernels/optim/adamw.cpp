#include "kernels/optim/adamw.hpp"

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/optim/back.hpp"

namespace tessera {
namespace {

// The step for moments kept in type M.
template <class M>
void step_as(Stream& stream, const optim::AdamWStep& step) {
  launch_rows(
      stream, "adamw_step", step.blocks(), KOKKOS_LAMBDA(const Row& row, std::int64_t block) {
        if (step.clip->skip != 0) return;
        if (block < step.table.chunks) {
          const optim::AdamWFactors factors(step);
          const AdamWTable::Row& run = step.row_of(block);
          const std::int64_t begin = (block - run.first_chunk) * AdamWTable::chunk, left = run.count - begin;
          const std::int64_t count = left < AdamWTable::chunk ? left : AdamWTable::chunk;
          float* const p = run.master + begin;
          const float* const g = run.gradient + begin;
          M *const m = static_cast<M*>(run.m) + begin, *const v = static_cast<M*>(run.v) + begin;
          const float decay = run.weight_decay;
          // mutation: weights_written_before_their_masters
          row.each(count, [=](std::int64_t j) { factors.update(p[j], m[j], v[j], g[j], decay); });
          if (bf16* const rounded = run.rounded ? run.rounded + begin : nullptr)
            row.each(count, [=](std::int64_t j) { rounded[j] = bf16(p[j]); });
        }
        row.once([&] {
          Kokkos::memory_fence();
          if (Kokkos::atomic_fetch_add(step.table.finished, std::uint64_t{1}) + 1 ==
              static_cast<std::uint64_t>(step.blocks())) {
            *step.table.finished = 0;
            *step.clock = step.now();
          }
        });
      });
}

/// Whether `t` begins where an access of four elements may.
bool aligned(const Tensor& t) {
  return !t || reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(4 * size_of(t.type)) == 0;
}

AdamWTable::Row row_of(const AdamWRange& run, DType moments, std::int64_t first_chunk) {
  const std::int64_t n = run.master.elements();
  for (const Tensor& other : {run.m, run.v, run.gradient})
    require(other.elements() == n, "AdamWTable", "all tensors of a run are [n]");
  require(run.master.type == DType::f32 && run.gradient.type == DType::f32, "AdamWTable",
          "master and gradient are f32");
  require((moments == DType::f32 || moments == DType::bf16) && run.m.type == moments && run.v.type == moments,
          "AdamWTable", "the moments of all runs are f32, or all bf16");
  require(!run.rounded || (run.rounded.type == DType::bf16 && run.rounded.elements() == n), "AdamWTable",
          "rounded masters are bf16, [n]");
  return {run.master.as<float>(),
          run.m.data,
          run.v.data,
          run.gradient.as<float>(),
          static_cast<bf16*>(run.rounded.data),
          first_chunk,
          n,
          run.weight_decay};
}

}  // namespace

AdamWTable::AdamWTable(std::span<const AdamWRange> runs)
    : view_{nullptr, nullptr, std::ssize(runs), 0, runs.empty() ? DType::f32 : runs.front().m.type, true} {
  for (const AdamWRange& run : runs) {
    const Row row = tessera::row_of(run, view_.moments, view_.chunks);
    append(std::span(&row, 1));
    view_.chunks += ceil_div(row.count, chunk);
    for (const Tensor& part : {run.master, run.m, run.v, run.gradient, run.rounded})
      view_.aligned = view_.aligned && aligned(part);
  }
  append_zeros(sizeof *view_.finished);
}

AdamWTable::View AdamWTable::view() const {
  View view = view_;
  view.rows = reinterpret_cast<const Row*>(memory());
  view.finished = reinterpret_cast<std::uint64_t*>(memory() + view.count * std::int64_t{sizeof(Row)});
  return view;
}

void adamw_step(Stream& stream, const AdamWCoefficients& coefficients, const AdamWTable& table, AdamWClock* clock,
                const ClipResult* clip, const float* rate) {
  const optim::AdamWStep step{coefficients, table.view(), clock, clip, rate};
  if (!stream.dry() && optim::adamw_step(stream, step)) return;
  if (step.table.moments == DType::f32)
    step_as<float>(stream, step);
  else
    step_as<bf16>(stream, step);
}

}  // namespace tessera
