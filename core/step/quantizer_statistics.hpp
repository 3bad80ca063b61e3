#pragma once
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/model/factor_observer.hpp"
#include "core/state/state_dict.hpp"
#include "core/step/step_plan.hpp"

namespace tessera {

/// One of the copies that are quantized for a weight's products.
struct CopyName {
  Purpose::Role role = Purpose::Role::weight;
  Side side = Side::rowwise;
  FormatId format{};
  bool operator==(const CopyName&) const = default;
};

/// Statistics of one quantized copy over a step: the same numbers on any number of ranks that make the same
/// micro-batches.
struct QuantizerLine {
  std::string matrix;  ///< canonical name of the weight
  CopyName copy;
  QuantizerSums sums;

  std::uint64_t finite() const { return sums.elements - sums.nan - sums.infinite; }
  float amax() const;
  double relative_error() const;  ///< sqrt(sum of squared errors / sum of squares); 0 if all values are 0
  double saturated() const;       ///< share of the finite values
  double underflow() const;       ///< share of the finite values other than 0
};

constexpr const char* name_of(Purpose::Role role) {
  constexpr const char* names[] = {"weight", "activation", "gradient"};
  return names[static_cast<int>(role)];
}

/// precision.statistics_every: measures what quantizers do to every matrix in chosen steps. Sums lie on the device;
/// a rank measures the micro-batches that it computes and the masters that it owns.
class QuantizerStatistics final : public FactorObserver {
 public:
  /// Allocates.
  QuantizerStatistics(Device& device, const StepPlan& plan);

  /// Before a step: begins with nothing, and measures the weights that it will use. `masters` are those of `mesh`'s
  /// ranks. Collective over the world.
  void begin(Stream& stream, const StateDict& masters, Mesh& mesh);
  void begin_micro_batch() override { seen_.clear(); }
  void made(Stream& stream, const MadeFactor& factor) override;
  void read(Stream&, const ReadWeight&) override {}

  /// The sums of this rank, with the digits of exact sums carried. Waits for the device. Local.
  std::vector<QuantizerLine> lines(Stream& stream);

 private:
  struct Line {
    std::string matrix;
    CopyName copy;
    formats::Matrix shape;  ///< of the weight's members
    std::int64_t members;
  };

  void measure_weight(Stream& stream, std::size_t line, const StateTensor& masters, Mesh& mesh);
  Tensor sums_of(std::size_t line) const;

  Device& device_;
  std::vector<Line> lines_;
  Tensor sums_;           ///< u64 [lines, QuantizerSums::words]
  Tensor tops_, amaxes_, errors_;  ///< bf16, f32 and u64, of the weight that is being measured
  /// What the micro-batch has shown: line and first row. A factor that is computed again does not count.
  std::set<std::pair<std::size_t, std::int64_t>> seen_;
};

}  // namespace tessera
