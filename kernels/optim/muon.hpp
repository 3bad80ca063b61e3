#pragma once
#include <span>

#include "kernels/base/device_table.hpp"
#include "kernels/base/stream.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

/// Rule of Muon's momentum.
struct MuonMomentum {
  double decay = 0.95;
  bool nesterov = true;
};

/// One matrix that Muon steps as a whole. All tensors hold n elements: master and gradient fp32, momentum fp32 or bf16.
struct MuonPart {
  Tensor master, momentum, gradient;
  double scale = 1;  ///< factor of its learning rate
};

/// A part as kernels read it.
struct MuonRow {
  float* master;
  void* momentum;
  float* gradient;
  std::int64_t first_chunk, count;
  float scale;
};

/// The parts of one launch of Muon's elementwise kernels.
class MuonTable : public DeviceTable<MuonRow> {
 public:
  /// Elements that a host thread or a block of device threads updates at a time.
  static constexpr std::int64_t chunk = 2048;

  MuonTable() = default;
  /// Throws Error{internal} if sizes or types do not match, or parts have momentum of different types.
  explicit MuonTable(std::span<const MuonPart> parts);

  std::int64_t count() const { return std::ssize(rows()); }
  std::int64_t chunks() const { return chunks_; }
  DType moments() const { return moments_; }

 private:
  std::int64_t chunks_ = 0;
  DType moments_ = DType::f32;
};

/// Muon's part before orthogonalisation, in one launch: with g' = coefficient g, m = mu m + (1 - mu) g', and the
/// gradient becomes u = mu m + (1 - mu) g' (nesterov) or m. Each product and sum is rounded to fp32, in the order
/// written; bf16 momentum is rounded once after use. Nothing changes if clip->skip is set. `clip` lies on the device.
/// Orders on `stream`. Local. Source: Jordan 2024.
void muon_momentum(Stream& stream, const MuonMomentum& momentum, const MuonTable& table, const ClipResult* clip);

/// Muon's part after orthogonalisation, in one launch: with the orthogonal matrix O in the gradient's place,
/// p = p (1 - lr wd) - (lr scale) O, rounded likewise. Nothing changes if clip->skip is set. `clip` and `rate` lie on
/// the device. Orders on `stream`. Local.
void muon_update(Stream& stream, double weight_decay, const MuonTable& table, const ClipResult* clip,
                 const float* rate);

}  // namespace tessera
