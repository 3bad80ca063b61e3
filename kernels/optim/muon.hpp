#pragma once
#include <span>
#include <vector>

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

/// The descriptor table of Muon's elementwise kernels: one row for each part, in device memory. Make it on the host;
/// the caller then copies image() to device memory of bytes() and names it by place().
class MuonTable {
 public:
  /// Elements that a host thread or a block of device threads updates at a time.
  static constexpr std::int64_t chunk = 2048;

  struct Row {
    float* master;
    void* momentum;
    float* gradient;
    std::int64_t first_chunk, count;
    float scale;
  };

  MuonTable() = default;
  /// Throws Error{internal} if sizes or types do not match, or parts have momentum of different types.
  explicit MuonTable(std::span<const MuonPart> parts);

  static constexpr std::int64_t bytes(std::int64_t parts) { return parts * std::int64_t{sizeof(Row)}; }
  const void* image() const { return rows_.data(); }
  void place(const Tensor& memory);

  const Row* memory() const { return memory_; }
  std::int64_t count() const { return std::ssize(rows_); }
  std::int64_t chunks() const { return chunks_; }
  DType moments() const { return moments_; }

 private:
  std::vector<Row> rows_;
  const Row* memory_ = nullptr;
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
