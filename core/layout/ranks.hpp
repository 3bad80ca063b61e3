#pragma once
#include <array>
#include <cstdint>

#include "kernels/base/error.hpp"

namespace tessera {

/// The process group that shares a parameter. dense: all (data-parallel) ranks; expert: the expert-data-parallel ranks,
/// which hold the same experts.
enum class ProcessGroup : std::uint8_t { dense, expert };
inline constexpr std::array process_groups = {ProcessGroup::dense, ProcessGroup::expert};
constexpr const char* name_of(ProcessGroup g) { return g == ProcessGroup::dense ? "dense" : "expert"; }

/// Over which ranks parameters are gathered and gradients summed. inside: the ranks of a sharding group, which keep one
/// copy of everything. across: the ranks of equal number in all sharding groups, which keep the same part of it.
enum class Level : std::uint8_t { inside, across };
inline constexpr std::array levels = {Level::inside, Level::across};
constexpr const char* name_of(Level l) { return l == Level::inside ? "inside" : "across"; }

/// A rank's number in a group of ranks.
struct RankIn {
  int rank = 0;
  int size = 1;
  bool operator==(const RankIn&) const = default;
};

/// This rank's number in every group of ranks. A pure value: planning makes it for any rank.
struct Ranks {
  RankIn world;        ///< all ranks: they share the dense parameters
  RankIn expert_data;  ///< the ranks that hold the same experts
  RankIn experts;      ///< the expert group: ranks that hold all experts between them; one rank without expert
                       ///< parallelism
  RankIn sharding{};   ///< this rank's sharding group among all of them; one group holds all ranks unless the deck
                       ///< makes more

  /// Groups of rank `rank` among `ranks`. An expert group is `expert` neighbouring ranks: rank r has position
  /// r mod `expert` in it, and ranks of equal position make an expert-data group. A sharding group, one of `groups`, is
  /// ranks / `groups` neighbouring ranks, whole expert groups. Throws Error{internal} unless `rank` is below `ranks`,
  /// `expert` divides `ranks`, and `groups` the number of expert groups.
  static Ranks in_world(int ranks, int rank, int expert = 1, int groups = 1) {
    require(ranks > 0 && rank >= 0 && rank < ranks, "Ranks", "takes a rank below the number of ranks");
    require(expert > 0 && ranks % expert == 0, "Ranks", "takes expert groups that divide the ranks");
    require(groups > 0 && ranks / expert % groups == 0, "Ranks", "takes sharding groups of whole expert groups");
    return {{rank, ranks}, {rank / expert, ranks / expert}, {rank % expert, expert}, {rank / (ranks / groups), groups}};
  }

  const RankIn& of(ProcessGroup group) const { return group == ProcessGroup::dense ? world : expert_data; }
  /// The ranks of one level that share the parameters of `group`.
  RankIn of(ProcessGroup group, Level level) const {
    const RankIn& all = of(group);
    const int size = all.size / sharding.size;
    return level == Level::across ? sharding : RankIn{all.rank % size, size};
  }
  /// The lowest rank of the world that shares the parameters of `group` with rank `rank` of the world.
  int first_sharer(ProcessGroup group, int rank) const {
    return group == ProcessGroup::dense ? 0 : rank % experts.size;
  }
  /// The rank `groups` expert groups further on, from the last on to the first, with the same place in its own.
  int further_on(int groups) const {
    const int rank = (world.rank + groups * experts.size) % world.size;  // mutation: spot_checks_of_ones_own
    return rank < 0 ? rank + world.size : rank;
  }
  bool operator==(const Ranks&) const = default;
};

}  // namespace tessera
