#pragma once
#include <span>
#include <vector>

#include "kernels/base/stream.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

/// How Muon's momentum follows the gradient.
struct MuonMomentum {
  double decay = 0.95;
  bool nesterov = true;
};

/// One matrix that Muon steps as a whole. All tensors hold n elements: master and gradient fp32, momentum fp32 or bf16.
struct MuonPart {
  Tensor master, momentum, gradient;
  double scale = 1;  ///< of its step, beside the rate
};

/// The descriptor table of Muon's elementwise kernels: a row a part, in device memory. Made on the host; the caller
/// copies image() to bytes() of device memory and names them by place().
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
  /// Throws Error{internal} where sizes or types do not fit, or parts keep their momentum in different types.
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

/// What comes before orthogonalisation, in one launch: with g' = coefficient g, m = mu m + (1 - mu) g', and the
/// gradient becomes u = mu m + (1 - mu) g' (nesterov) or m. Each product and sum is rounded to fp32, in the order
/// written; a momentum in bf16 is rounded once after use. Nothing changes where clip->skip is set. `clip` lies on the
/// device. Source: Jordan 2024.
void muon_momentum(Stream& stream, const MuonMomentum& momentum, const MuonTable& table, const ClipResult* clip);

/// What comes after it, in one launch: with the orthogonal matrix O in the gradient's place, p = p (1 - lr wd) -
/// (lr scale) O, rounded likewise. Nothing changes where clip->skip is set. `clip` and `rate` lie on the device.
void muon_update(Stream& stream, double weight_decay, const MuonTable& table, const ClipResult* clip,
                 const float* rate);

}  // namespace tessera
