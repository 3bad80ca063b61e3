#pragma once
#include <span>
#include <vector>

#include "kernels/base/stream.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

/// Coefficients of AdamW, the same for all elements.
struct AdamWCoefficients {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};
/// Running state on the device: t applied updates, beta^t as running products in double.
struct AdamWClock {
  std::int64_t t = 0;
  double beta1_power = 1, beta2_power = 1;
};

/// Neighbouring elements of one weight decay. All tensors are [n]: master and gradient fp32, both moments fp32 or bf16.
struct AdamWRun {
  Tensor master, m, v, gradient;
  float weight_decay = 0;
};

/// The descriptor table of one adamw_step(): a row a run, in device memory. Made on the host; the caller copies image()
/// to bytes() of device memory and names them by place().
class AdamWTable {
 public:
  /// Elements that a host thread or a block of device threads updates at a time.
  static constexpr std::int64_t chunk = 2048;

  struct Row {
    float* master;
    void *m, *v;
    const float* gradient;
    std::int64_t first_chunk, count;
    float weight_decay;
  };
  /// What the kernels take.
  struct View {
    const Row* rows;
    std::uint64_t* finished;  ///< blocks of a launch that have ended; 0 between launches
    std::int64_t count, chunks;
    DType moments;
    bool aligned;  ///< every tensor begins at a multiple of 16 bytes
  };

  AdamWTable() = default;
  /// Throws Error{internal} where sizes or types do not fit, or runs keep their moments in different types.
  explicit AdamWTable(std::span<const AdamWRun> runs);

  static constexpr std::int64_t bytes(std::int64_t runs) {
    return runs * std::int64_t{sizeof(Row)} + std::int64_t{sizeof(std::uint64_t)};
  }
  const void* image() const { return image_.data(); }
  void place(const Tensor& memory);
  const View& view() const { return view_; }

 private:
  std::vector<std::byte> image_;
  View view_{};
};

/// One step of every run of the table, in ONE launch, in place: t and the powers of beta advance, then g' = coefficient
/// g; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2; p -= lr ((m/c1) / (sqrt(v/c2) + eps) + wd p), c = 1 - beta^t.
/// Computed in fp32 in the order written; bf16 moments are rounded once after use. Nothing changes, t neither, when
/// clip->skip is set. `clock`, `clip` and `rate` lie on the device. Source: Loshchilov and Hutter 2019.
void adamw_step(Stream& stream, const AdamWCoefficients& coefficients, const AdamWTable& table, AdamWClock* clock,
                const ClipResult* clip, const float* rate);

}  // namespace tessera
