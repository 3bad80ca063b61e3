#include "kernels/optim/muon.hpp"

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/base/prefix.hpp"

namespace tessera {
namespace {

/// Calls f(part, j) for every element j of every part. Kernels take only a pointer and two counts of the table.
template <class F>
void launch_parts(Stream& stream, const char* name, const MuonTable& table, const ClipResult* clip, const F& f) {
  const MuonTable::Row* const rows = table.device_rows();
  const std::int64_t count = table.count();
  launch_rows(
      stream, name, table.chunks(), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        if (clip->skip != 0) return;  // mutation: momentum_of_a_skipped_step
        const MuonTable::Row& part = row_of_piece(rows, 0, count, &MuonTable::Row::first_chunk, r);
        const std::int64_t begin = (r - part.first_chunk) * MuonTable::chunk, left = part.count - begin;
        f(row, part, begin, left < MuonTable::chunk ? left : MuonTable::chunk);
      });
}

// The momentum step. M is the type in which the momentum is kept.
template <class M>
struct Momentum {
  float decay;
  bool nesterov;
  const ClipResult* clip;

  KOKKOS_FUNCTION void operator()(const Row& row, const MuonTable::Row& part, std::int64_t begin,
                                  std::int64_t size) const {
    const float mu = decay, rest = 1.0f - decay, coefficient = clip->coefficient;
    const bool ahead = nesterov;
    M* const m = static_cast<M*>(part.momentum) + begin;
    float* const g = part.gradient + begin;
    row.each(size, [=](std::int64_t j) {
      const float clipped = coefficient * g[j];
      const float mean = mu * static_cast<float>(m[j]) + rest * clipped;
      g[j] = ahead ? mu * mean + rest * clipped : mean;
      m[j] = static_cast<M>(mean);
    });
  }
};

struct Update {
  float weight_decay;
  const float* rate;

  KOKKOS_FUNCTION void operator()(const Row& row, const MuonTable::Row& part, std::int64_t begin,
                                  std::int64_t size) const {
    const float kept = 1.0f - *rate * weight_decay, length = *rate * part.scale;
    float* const p = part.master + begin;
    const float* const o = part.gradient + begin;
    row.each(size, [=](std::int64_t j) { p[j] = p[j] * kept - length * o[j]; });
  }
};

}  // namespace

MuonTable::MuonTable(std::span<const MuonPart> parts) {
  if (!parts.empty()) moments_ = parts.front().momentum.type;
  for (const MuonPart& part : parts) {
    const std::int64_t n = part.master.elements();
    require(part.momentum.elements() == n && part.gradient.elements() == n, "MuonTable",
            "all tensors of a part are [n]");
    require(part.master.type == DType::f32 && part.gradient.type == DType::f32, "MuonTable",
            "master and gradient are f32");
    require((moments_ == DType::f32 || moments_ == DType::bf16) && part.momentum.type == moments_, "MuonTable",
            "the momentum of all parts is f32, or of all bf16");
    add({part.master.as<float>(), part.momentum.data, part.gradient.as<float>(), chunks_, n,
         static_cast<float>(part.scale)});
    chunks_ += ceil_div(n, chunk);
  }
}

void muon_momentum(Stream& stream, const MuonMomentum& momentum, const MuonTable& table, const ClipResult* clip) {
  const auto decay = static_cast<float>(momentum.decay);
  if (table.moments() == DType::f32)
    launch_parts(stream, "muon_momentum", table, clip, Momentum<float>{decay, momentum.nesterov, clip});
  else
    launch_parts(stream, "muon_momentum", table, clip, Momentum<bf16>{decay, momentum.nesterov, clip});
}

void muon_update(Stream& stream, double weight_decay, const MuonTable& table, const ClipResult* clip,
                 const float* rate) {
  launch_parts(stream, "muon_update", table, clip, Update{static_cast<float>(weight_decay), rate});
}

}  // namespace tessera
