#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/mpi.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

/// What the bits of a rank's arithmetic depend on beside the deck: pairs of name and value, such as {"commit",
/// "81fc002"}.
using Equipment = std::vector<std::pair<std::string, std::string>>;

/// Commit, compiler, libraries, instructions and GPU of this process. `gpu`: own_gpu(). Local.
Equipment own_equipment(int gpu);

/// In what ranks differ, a line for each difference: "hosts differ: h2 (ranks 2-3): oneDNN 2.6.0, others 3.1.0". The
/// value that most ranks have is that of the others. `hosts`, `all`: of every rank. Local.
std::vector<std::string> differences(const std::vector<std::string>& hosts, const std::vector<Equipment>& all);

/// How ranks on other hosts differ from each other.
struct HostsFound {
  std::vector<std::string> differences;
  std::vector<std::string> told;  ///< what puts nothing at risk, a line each: clocks
};

/// Compares the equipment and the clocks of all ranks. Collective over the world.
HostsFound compare_hosts(const Mpi& mpi, Control& control, int gpu);

/// Ranks of each host; none unless all hosts have as many, whose numbers follow each other. `hosts`: of every rank.
/// Local.
std::optional<int> ranks_of_each_host(const std::vector<std::string>& hosts);

/// Text of ranks by host: "h2 (ranks 2-3), h4 (rank 7)". Local.
std::string places_text(const std::vector<std::string>& hosts, const std::vector<int>& ranks);

}  // namespace tessera
