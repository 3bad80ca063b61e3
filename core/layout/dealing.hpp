#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/layout/param.hpp"

/// Whole-matrix owners: which rank owns which members of a bucket. The offsets of a bucket never depend on it.
namespace tessera {

/// Cost of one member for its owner, up to a factor: a Newton-Schulz step of a part [r,c] makes products of
/// min(r,c)^2 max(r,c) multiplications. A sum of whole numbers, in double, so that it is the same everywhere.
double newton_schulz_cost(const ParamSpec& spec);

/// Newton-Schulz cost and elements of a member, of a run of members or of a rank.
struct OwnerLoad {
  double cost = 0;
  std::int64_t elements = 0;

  OwnerLoad& operator+=(const OwnerLoad& more) {
    cost += more.cost;
    elements += more.elements;
    return *this;
  }
  bool operator==(const OwnerLoad&) const = default;
};

/// Neighbouring members of one bucket, and who owns them.
struct OwnedRun {
  int members = 0;
  int rank = 0;
  bool operator==(const OwnedRun&) const = default;
};

/// Deals the members of one process group's buckets to its ranks, bucket by bucket.
class Dealing {
 public:
  /// `members`: every member that will be dealt.
  Dealing(int ranks, std::span<const OwnerLoad> members);

  /// The runs of one bucket's members, in order: min(members, ranks) of about equal cost. Run j ends with the first
  /// member at which runs * (cost so far) >= (j+1) * (cost of all), or earlier where each later run needs a member. By
  /// falling cost (ties: the earlier) a run goes to a rank without one in this bucket: that with the least cost so far
  /// (ties: the lower), passing over ranks whose elements would exceed 1.25 times the mean plus the largest member
  /// while another's would not.
  std::vector<OwnedRun> deal(std::span<const OwnerLoad> members);

  /// What each rank has been dealt so far.
  const std::vector<OwnerLoad>& loads() const { return loads_; }

 private:
  int rank_for(const OwnerLoad& run, const std::vector<bool>& taken) const;

  std::vector<OwnerLoad> loads_;
  double most_elements_ = 0;
};

}  // namespace tessera
