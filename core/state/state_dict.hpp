#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/layout/layout.hpp"

namespace tessera {

/// Consecutive elements of a canonical tensor that this rank holds.
struct StateRange {
  std::int64_t first = 0;  ///< row-major index in the canonical tensor
  Tensor values;           ///< [count], on the device
};

/// One tensor of state in model space: no padding, buckets or shards.
struct StateTensor {
  std::string slot;  ///< "model", or the optimizer's: "adamw/m"
  std::string name;  ///< canonical: an expert projection is one tensor, its experts the first axis
  Shape shape;
  DType type = DType::f32;
  Role role = Role::matrix;
  std::vector<StateRange> ranges;  ///< ascending; together the ranks hold every element once
  std::string tied_to = {};        ///< the further canonical name of a tied parameter, or empty

  std::string path() const { return "/" + slot + "/" + name; }
};

/// The scalars of a run's state. visit() is their only list: path in files and value.
struct StateCounters {
  std::int64_t step = 0;                    ///< steps done
  std::int64_t t = 0;                       ///< updates applied; skipped steps apply none
  double beta1_power = 1, beta2_power = 1;  ///< beta^t as running products
  std::int64_t skips_in_a_row = 0;
  std::int64_t tokens = 0;       ///< consumed
  std::int64_t next_sample = 0;  ///< global index of the next training sample
  std::uint64_t seed = 0;

  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    v("/counters/step", self.step);
    v("/counters/t", self.t);
    v("/counters/beta1_power", self.beta1_power);
    v("/counters/beta2_power", self.beta2_power);
    v("/counters/skips_in_a_row", self.skips_in_a_row);
    v("/counters/tokens", self.tokens);
    v("/data/next_sample", self.next_sample);
    v("/rng/seed", self.seed);
  }
  bool operator==(const StateCounters&) const = default;
};

/// All that a checkpoint sees of a run. Tensors (but for their ranges) and counters are the same on all ranks.
struct StateDict {
  std::vector<StateTensor> tensors;
  StateCounters counters;
  Tensor digests;  ///< u64 [tensors] on the device: where a save and a load sum

  /// Appends one tensor for each canonical name of the registry, in its order: this rank's slices of every bucket seen
  /// as flat ranges. `shards[b]` is this rank's slice of bucket b; without shards, tensors that this rank holds nothing
  /// of.
  void add(const std::string& slot, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
           std::span<const Tensor> shards);
};

/// Of one element, as a tensor of one would have: what counters enter content_digest with.
std::uint64_t scalar_digest(std::uint64_t bits);

/// A digest of what training continues from, whatever ranks, shards and expert layout: sums mix64(fnv1a64(path) xor D)
/// over tensors and counters, as io/checkpoint/FORMAT.md has it.
class ContentDigest {
 public:
  void add(const std::string& path, std::uint64_t digest);
  void add(const StateCounters& counters);
  std::uint64_t value() const { return sum_; }

 private:
  std::uint64_t sum_ = 0;
};

}  // namespace tessera
