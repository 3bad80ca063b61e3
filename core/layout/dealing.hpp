#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/layout/param.hpp"

/// Assignment of the members of whole-matrix buckets to owner ranks. The offsets in a bucket never depend on it.
namespace tessera {

/// Cost of one member for its owner, up to a constant factor: a Newton-Schulz step on a part [r,c] makes matrix
/// products of min(r,c)^2 max(r,c) multiplications. A sum of whole numbers in double, so that all ranks get the same.
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

/// A run of neighbouring members of one bucket, and the rank that owns them.
struct OwnedRange {
  int members = 0;
  int rank = 0;
  bool operator==(const OwnedRange&) const = default;
};

/// Deals the members of one process group's buckets to its ranks, bucket by bucket. Pure: the same on all ranks.
class Dealing {
 public:
  /// `members`: the loads of all members that will be dealt, from which the limit of elements a rank follows.
  Dealing(int ranks, std::span<const OwnerLoad> members);

  /// Cuts one bucket's members into min(members, ranks) runs of about equal cost and gives each run to a rank. Run j
  /// ends with the first member at which runs * (cost so far) >= (j+1) * (cost of all), or earlier if otherwise a later
  /// run would have no member. Runs are given out by falling cost (ties: the earlier run first). Each goes to the rank
  /// with the least cost so far (ties: the lower rank) among those that have no run of this bucket. A rank whose
  /// elements would exceed 1.25 times the mean plus the largest member is passed over if another's would not. Returns
  /// runs in order.
  std::vector<OwnedRange> deal(std::span<const OwnerLoad> members);

  /// What each rank has been dealt so far.
  const std::vector<OwnerLoad>& loads() const { return loads_; }

 private:
  int rank_for(const OwnerLoad& run, const std::vector<bool>& taken) const;

  std::vector<OwnerLoad> loads_;
  double most_elements_ = 0;
};

/// Deals all buckets of one process group to ranks in sharding groups. First to the numbers in a group, so that ranks
/// of equal number own neighbours; then each run to the groups. One group is a Dealing to its ranks. Pure.
class GroupedDealing {
 public:
  /// `buckets`: the loads of each bucket's members.
  GroupedDealing(int ranks, int sharding_groups, const std::vector<std::vector<OwnerLoad>>& buckets);

  /// The runs of each bucket, in order.
  const std::vector<std::vector<OwnedRange>>& runs() const { return runs_; }
  /// What each rank has been dealt.
  const std::vector<OwnerLoad>& loads() const { return loads_; }

 private:
  std::vector<std::vector<OwnedRange>> runs_;
  std::vector<OwnerLoad> loads_;
};

}  // namespace tessera
