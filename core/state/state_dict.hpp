#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
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

/// This rank's slice of one bucket, [counts[rank]] on the device.
struct BucketSlice {
  BucketId bucket;
  Tensor values;
};

/// A named array of state over the parameters of some buckets, laid out as their masters are.
struct StateSlot {
  const char* name;  ///< "model", or the optimizer's: "adamw/m"
  std::span<const BucketSlice> slices;
  /// Type of all its tensors.
  DType type() const { return slices.empty() ? DType::f32 : slices.front().values.type; }
};

/// A scalar of an optimizer rule's state, by name: unique among the rules of a run.
struct RuleCounter {
  static constexpr std::string_view group = "/counters/";
  std::string name;  ///< "beta1_power"
  std::variant<std::int64_t, double> value;

  std::string path() const { return std::string(group) + name; }
  /// The value's 64 bits, as the device holds them; and the same counter with a value of other bits.
  std::uint64_t bits() const;
  RuleCounter with_bits(std::uint64_t bits) const;
  bool operator==(const RuleCounter&) const = default;
};

/// The scalars of a run's state: those of the run itself, of its optimizer's rules, and the gradient norms by which
/// spikes are told. visit() is their only list: path in files and value.
struct StateCounters {
  std::int64_t step = 0;  ///< steps done
  std::int64_t skips_in_a_row = 0;
  std::int64_t tokens = 0;       ///< consumed
  std::int64_t next_sample = 0;  ///< global index of the next training sample
  std::uint64_t seed = 0;
  std::vector<RuleCounter> rules = {};
  std::vector<double> norms = {};  ///< of the last steps, the newest last: NormWindow's; none without skip_spikes

  static constexpr std::string_view norm_prefix = "/counters/norm_";  ///< and three digits, 000 the oldest
  static std::string norm_path(std::size_t i);

  /// Visits the run's own counters alone.
  template <class Self, class V>
  static void visit_run(Self& self, V&& v) {
    v("/counters/step", self.step);
    v("/counters/skips_in_a_row", self.skips_in_a_row);
    v("/counters/tokens", self.tokens);
    v("/data/next_sample", self.next_sample);
    v("/rng/seed", self.seed);
  }
  template <class Self, class V>
  static void visit(Self& self, V&& v) {
    visit_run(self, v);
    for (auto& counter : self.rules)
      std::visit([&, path = counter.path()](auto& value) { v(path.c_str(), value); }, counter.value);
    for (std::size_t i = 0; i < self.norms.size(); ++i) v(norm_path(i).c_str(), self.norms[i]);
  }
  bool operator==(const StateCounters&) const = default;
};

class ExternalEvent;

/// All that a checkpoint sees of a run. Tensors (but for their ranges) and counters are the same on all ranks.
struct StateDict {
  std::vector<StateTensor> tensors;
  StateCounters counters;
  Tensor digests;  ///< u64 [tensors] on the device: memory in which saves and loads sum digests
  /// The next update of the tensors waits for this event, which a reader records (Snapshot). Null: it waits for none.
  ExternalEvent* before_update = nullptr;

  /// Appends one tensor for each canonical name of the registry that lies in the slot's buckets, in registration order:
  /// this rank's slices seen as flat ranges.
  void add(const StateSlot& slot, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks);
  /// The same for every canonical name, without ranges: what a rank knows of tensors that it does not hold.
  void add(const std::string& slot, const ParamRegistry& registry);
};

/// Digest of a scalar, that of a tensor of one element: how counters enter content_digest.
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
