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

/// One canonical tensor of state, without padding, buckets or shards.
struct StateTensor {
  std::string slot;  ///< "model", or a slot of the optimizer: "adamw/m"
  std::string name;  ///< canonical name: an expert projection is one tensor, with the experts as first axis
  Shape shape;
  DType type = DType::f32;
  Role role = Role::matrix;
  std::vector<StateRange> ranges;  ///< this rank's, ascending; the ranks together hold every element once
  std::string tied_to = {};        ///< second canonical name of a tied parameter, or empty

  std::string path() const { return "/" + slot + "/" + name; }
};

/// This rank's slice of one bucket, [counts[rank]] on the device.
struct BucketSlice {
  BucketId bucket;
  Tensor values;
};

/// A named array of state over the parameters of some buckets, in the layout of their masters.
struct StateSlot {
  const char* name;  ///< "model", or a slot of the optimizer: "adamw/m"
  std::span<const BucketSlice> slices;
  /// Type of all its tensors.
  DType type() const { return slices.empty() ? DType::f32 : slices.front().values.type; }
};

/// A named scalar of an optimizer rule's state. Names are unique among the rules of a run.
struct RuleCounter {
  static constexpr std::string_view group = "/counters/";
  std::string name;  ///< "beta1_power"
  std::variant<std::int64_t, double> value;

  std::string path() const { return std::string(group) + name; }
  /// The value's 64 bits, as on the device; and the counter of this name with the value of other bits.
  std::uint64_t bits() const;
  RuleCounter with_bits(std::uint64_t bits) const;
  bool operator==(const RuleCounter&) const = default;
};

/// The scalars of a run's state: those of the run itself, of its optimizer's rules, and the gradient norms for spike
/// detection. visit() is their only list: path in files and value.
struct StateCounters {
  std::int64_t step = 0;  ///< steps done
  std::int64_t skips_in_a_row = 0;
  std::int64_t tokens = 0;       ///< tokens consumed
  std::int64_t next_sample = 0;  ///< global index of the next training sample
  std::uint64_t seed = 0;
  std::vector<RuleCounter> rules = {};
  std::vector<double> norms = {};  ///< NormWindow::norms(), the newest last; empty without skip_spikes
  std::uint64_t chain = 0;  ///< of all steps since the run's first; a record beside the state, which visit() leaves out

  static constexpr std::string_view norm_prefix = "/counters/norm_";  ///< three digits follow, 000 the oldest
  static std::string norm_path(std::size_t i);

  /// Visits the run's own counters only.
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

/// The state of a run as a checkpoint saves and loads it. Counters and tensors, except for their ranges, are the same
/// on all ranks.
struct StateDict {
  std::vector<StateTensor> tensors;
  StateCounters counters;
  Tensor digests;  ///< u64 [tensors] on the device: memory in which saves and loads sum digests
  /// Event that the next update of the tensors waits for; an asynchronous reader (Snapshot) records it. Null: no event.
  ExternalEvent* before_update = nullptr;

  /// Appends one tensor for each canonical dataset that lies in the slot's buckets, in registration order, with this
  /// rank's slices as ranges. Local.
  void add(const StateSlot& slot, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks);
  /// Appends one tensor for every canonical dataset, without ranges: the description of tensors that a rank does not
  /// hold. Local.
  void add(const std::string& slot, const ParamRegistry& registry);
};

/// Digest of a counter for content_digest: that of a tensor with this one element.
std::uint64_t scalar_digest(std::uint64_t bits);

/// Digest of a state's content, independent of ranks, shards and expert layout: the sum of mix64(fnv1a64(path) xor D)
/// over tensors and counters, D being a digest of each. Source: io/checkpoint/FORMAT.md.
class ContentDigest {
 public:
  void add(const std::string& path, std::uint64_t digest);
  void add(const StateCounters& counters);
  std::uint64_t value() const { return sum_; }

 private:
  std::uint64_t sum_ = 0;
};

}  // namespace tessera
