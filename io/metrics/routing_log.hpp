#pragma once
#include <filesystem>
#include <map>
#include <vector>

#include "io/metrics/routing_row.hpp"
#include "io/metrics/row_file.hpp"

namespace tessera {

inline constexpr const char* routing_file = "routing.jsonl";

/// Reads the rows of a routing.jsonl, in its order; none if there is no such file. Lines that are not rows are left
/// out. Throws Error{environment} if the file cannot be read.
std::vector<RoutingRow> read_routing(const std::filesystem::path& path);
std::vector<KeptRow> read_kept(const std::filesystem::path& path);

/// routing.jsonl, the record of a run's routing: a line for each layer with experts and recorded step. Rank 0 alone
/// writes it. Local.
class RoutingLog {
 public:
  /// Opens it as RowFile does, which says what is dropped and thrown.
  RoutingLog(const std::filesystem::path& path, std::int64_t step);

  /// Writes the rows of a step at once, with their change since the last recorded step; fails as RowFile::append().
  [[nodiscard]] Problems append(std::vector<RoutingRow> rows);
  [[nodiscard]] Problems append_kept(const std::vector<KeptRow>& rows);

 private:
  RowFile rows_;
  std::map<std::int64_t, RoutingRow> last_;  ///< the newest row of each layer
};

}  // namespace tessera
