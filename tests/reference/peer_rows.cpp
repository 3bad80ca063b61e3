#include "tests/reference/peer_rows.hpp"

#include <algorithm>

namespace tessera::reference {

std::vector<std::vector<std::int32_t>> rows_at_experts(const ArrivalShape& shape, const std::vector<Routed>& ranks) {
  std::vector<std::vector<std::int32_t>> rows;
  for (const Routed& rank : ranks) rows.emplace_back(rank.expert.size(), -1);
  std::int64_t next = 0, arriving = 0, most = 0;
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    if (e % shape.held() == 0) next = arriving = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r)
      for (std::size_t slot = 0; slot < ranks[r].expert.size(); ++slot) {
        if (ranks[r].expert[slot] != static_cast<std::int32_t>(e) || ranks[r].row_of_slot[slot] < 0) continue;
        rows[r][slot] = static_cast<std::int32_t>(next++);
        most = std::max(most, ++arriving);
      }
    while (next % shape.row_multiple != 0) ++next;
  }
  if (most > shape.room)
    for (std::vector<std::int32_t>& of_rank : rows) std::fill(of_rank.begin(), of_rank.end(), -1);
  return rows;
}

}  // namespace tessera::reference
