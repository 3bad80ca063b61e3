#pragma once
#include <span>
#include <vector>

#include "core/config/config.hpp"
#include "core/device/device.hpp"
#include "core/optim/rule.hpp"
#include "kernels/newton_schulz/newton_schulz.hpp"
#include "kernels/optim/muon.hpp"

namespace tessera {

/// The Newton-Schulz steps of a deck's `coefficients`. Sources: quintic, Cesista 2025 (found by optimisation); simple,
/// Jordan 2024; polar_express, Amsel 2025.
std::span<const NewtonSchulzStep> steps_of(MuonCoefficients coefficients);

/// What a deck's `scale` makes of the rate for a part [out, in].
double scale_of(MuonScale scale, std::int64_t out, std::int64_t in);

/// What Muon cannot step: a model without matrices, or a parameter that is called one and is none.
Problems problems_with_muon(const ParamRegistry& registry);

/// Muon on whole-matrix buckets: an average of the gradient, made orthogonal part by part (ParamSpec::parts), with
/// decoupled weight decay. One momentum a weight; no counters. A part's step depends on that part alone, so that it is
/// the same whoever owns it.
class Muon final : public Rule {
 public:
  /// Throws Error{internal} where a bucket is not of matrices that their owners hold whole.
  Muon(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
       std::vector<BucketId> buckets, const OptimizerConfig& config);

  void initialise(Stream& stream) override;
  /// The gradients of its buckets are overwritten.
  void step(Stream& stream, const Clipped& gradients, const Masters& masters, const RulePlaces& places) override;
  void visit_state(const SlotVisitor& visit) const override;
  void visit_counters(const CounterVisitor&) const override {}

 private:
  /// A matrix that is made orthogonal by itself.
  struct Part {
    std::size_t slice;  ///< of momentum_
    std::int64_t begin;
    Shape shape;  ///< [out, in]
  };
  void add_parts(const ParamRegistry& registry, const std::vector<Piece>& pieces);
  void place_tables(Stream& stream, const Clipped& gradients, const Masters& masters);

  Device& device_;
  MuonMomentum momentum_rule_;
  std::span<const NewtonSchulzStep> steps_;
  MuonScale scale_;
  double weight_decay_;
  std::vector<BucketSlice> momentum_;
  std::vector<Part> parts_;
  MuonTable table_;
  NewtonSchulzTable matrices_;
  Tensor table_memory_, matrices_memory_;
  std::vector<const void*> addresses_;  ///< that the tables were made of
};

}  // namespace tessera
