#pragma once
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/layout/ranks.hpp"

namespace tessera {

/// A group of ranks, from which a back end makes a communicator.
struct RankGroup {
  const char* name;  ///< in logs and errors; empty for the world
  RankIn place;      ///< this rank's number in the group, and the group's size
  int first = 0;     ///< the group's lowest rank in the world, which tells groups of one kind apart
  bool alike = true; ///< whether all groups of this name move equal counts, which the log then compares
};

/// The communicators of all process groups of a run, made once by one back end. They share one log, one progress hook,
/// one way out and, on GPUs, one stream, so that a rank's collectives have one total order. Groups of the same ranks
/// share a communicator. Move-only.
class Mesh {
 public:
  using Make = std::function<std::unique_ptr<Communicator>(const RankGroup&)>;
  using Wrap = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)>;

  /// Calls `make` for the world, then for each other group of more than one rank, in one order on all ranks. A group of
  /// one rank inside a larger world gets self_communicator().
  Mesh(const Ranks& ranks, const Make& make);

  const Ranks& ranks() const { return ranks_; }

  Communicator& world() { return *communicators_.front(); }
  const Communicator& world() const { return *communicators_.front(); }
  /// The ranks that share the parameters of `group`.
  Communicator& of(ProcessGroup group) {
    return group == ProcessGroup::dense ? world() : *communicators_[expert_data_];
  }
  /// Those of one level.
  Communicator& of(ProcessGroup group, Level level) {
    return *communicators_[level == Level::across ? across_ : inside_[static_cast<std::size_t>(group)]];
  }
  /// The expert group.
  Communicator& experts() { return *communicators_[experts_]; }

  /// The functions of Communicator with these names, for all communicators together.
  const CollectiveLog* log() const { return world().log(); }
  double busy() const { return world().busy(); }
  bool on_streams() const;
  void replayed(const Event& end) { world().replayed(end); }

  /// Replaces every communicator by wrapper(communicator).
  void wrap(const Wrap& wrapper);

 private:
  std::size_t add(const RankGroup& group, const Make& make);
  void add_sharding_groups(const Make& make);

  Ranks ranks_;
  std::vector<std::unique_ptr<Communicator>> communicators_;  ///< distinct ones; the world first
  std::size_t expert_data_ = 0, experts_ = 0, across_ = 0;    ///< their indices in communicators_
  std::array<std::size_t, process_groups.size()> inside_{};   ///< likewise, by process group
};

/// The mesh of a run of one rank.
Mesh self_mesh();

/// The mesh for planning: stands for one rank of `ranks` and moves nothing.
Mesh planning_mesh(const Ranks& ranks);

}  // namespace tessera
