#pragma once
#include <span>
#include <vector>

#include "core/config/sections/optimizer.hpp"
#include "core/device/device.hpp"
#include "core/optim/rule.hpp"
#include "kernels/newton_schulz/newton_schulz.hpp"
#include "kernels/optim/muon.hpp"

namespace tessera {

/// The Newton-Schulz steps of a deck's `coefficients`. Sources: quintic, Cesista 2025 (found by optimisation); simple,
/// Jordan 2024; polar_express, Amsel 2025.
std::span<const NewtonSchulzStep> steps_of(MuonCoefficients coefficients);

/// The factor of the learning rate for a part [out, in] with a deck's `scale`.
double scale_of(MuonScale scale, std::int64_t out, std::int64_t in);

/// Reasons why Muon cannot step a model: it has no matrices, or a parameter with a matrix's role has another shape.
Problems problems_with_muon(const ParamRegistry& registry);

/// Muon on whole-matrix buckets: momentum of the gradient, orthogonalised part by part (ParamSpec::parts), with
/// decoupled weight decay. State: one momentum a weight; no counters. A part's step depends on that part alone, so its
/// bits do not depend on the owner.
class Muon final : public Rule {
 public:
  /// Throws Error{internal} unless every bucket is a whole-matrix bucket of matrices.
  Muon(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
       std::vector<BucketId> buckets, const OptimizerConfig& config);

  void initialise(Stream& stream) override;
  /// Overwrites the gradients of its buckets.
  void step(Stream& stream, const Clipped& gradients, const Masters& masters, const RulePlaces& places) override;
  void visit_state(const SlotVisitor& visit) const override;
  void visit_counters(const CounterVisitor&) const override {}

 private:
  /// A matrix that is orthogonalised by itself.
  struct OwnedMatrix {
    std::size_t slice;  ///< of momentum_
    std::int64_t begin;
    Shape shape;  ///< [out, in]
  };
  void add_matrices(const ParamRegistry& registry, const std::vector<ShardRange>& ranges);
  void place_tables(Stream& stream, const Clipped& gradients, const Masters& masters);

  Device& device_;
  MuonMomentum momentum_rule_;
  std::span<const NewtonSchulzStep> steps_;
  MuonScale scale_;
  double weight_decay_;
  std::vector<BucketSlice> momentum_;
  std::vector<OwnedMatrix> owned_;
  MuonTable table_;
  NewtonSchulzTable matrices_;
  Tensor table_memory_, matrices_memory_;
  std::vector<const void*> addresses_;  ///< from which the tables were made
};

}  // namespace tessera
