#pragma once
#include <span>

#include "kernels/base/device_table.hpp"
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

/// A run of neighbouring elements with one weight decay. All tensors are [n]: master and gradient fp32, both moments
/// fp32 or bf16. `rounded`, bf16 or empty, takes the new master rounded to nearest even, so that no cast has to read
/// it.
struct AdamWRange {
  Tensor master, m, v, gradient;
  float weight_decay = 0;
  Tensor rounded{};
};

/// The runs of one adamw_step(), and behind them a counter of its blocks.
class AdamWTable : public DeviceImage {
 public:
  /// Elements that a host thread or a block of device threads updates at a time.
  static constexpr std::int64_t chunk = 2048;

  struct Row {
    float* master;
    void *m, *v;
    const float* gradient;
    bf16* rounded;  ///< null: none
    std::int64_t first_chunk, count;
    float weight_decay;
  };
  /// The table as kernels read it.
  struct View {
    const Row* rows;
    std::uint64_t* finished;  ///< number of blocks of a launch that have ended; 0 between launches
    std::int64_t count, chunks;
    DType moments;
    bool aligned;  ///< whether four elements of every tensor are one aligned access
  };

  /// Throws Error{internal} if sizes or types do not match, or runs have moments of different types.
  explicit AdamWTable(std::span<const AdamWRange> runs = {});

  static constexpr std::int64_t bytes_of(std::int64_t runs) {
    return runs * std::int64_t{sizeof(Row)} + std::int64_t{sizeof(std::uint64_t)};
  }
  /// Throws Error{internal} before bind().
  View view() const;

 private:
  View view_{};  ///< without addresses
};

/// Steps every run of the table in ONE launch, in place. First t and the powers of beta advance, then g' = coefficient
/// g; m = b1 m + (1-b1) g'; v = b2 v + (1-b2) g'^2; p -= lr ((m/c1) / (sqrt(v/c2) + eps) + wd p), c = 1 - beta^t.
/// Computed in fp32 in the order written; bf16 moments are rounded once after use, and so is what goes to `rounded`. If
/// clip->skip is set nothing changes, nor does t. `clock`, `clip` and `rate` lie on the device. Orders on `stream`.
/// Local. Source: Loshchilov and Hutter 2019.
void adamw_step(Stream& stream, const AdamWCoefficients& coefficients, const AdamWTable& table, AdamWClock* clock,
                const ClipResult* clip, const float* rate);

}  // namespace tessera
