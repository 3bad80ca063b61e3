#include "kernels/base/launch.hpp"
#include "kernels/moe/arrival_counts.hpp"
#include "kernels/moe/peer_rows.hpp"

namespace tessera {
namespace {

using moe::ArrivalCounts;

void find_offsets(Stream& stream, const ArrivalCounts& counts, const Tensor& offsets, DispatchStats* arrivals) {
  const std::int64_t held = counts.shape.held(), place = counts.shape.place;
  std::int32_t* const out = offsets.as<std::int32_t>();
  launch(stream, "arrive_offsets", held + 1, KOKKOS_LAMBDA(std::int64_t e) {
    const bool fit = counts.fit();
    out[e] = fit ? static_cast<std::int32_t>(counts.offset(place * held, e)) : 0;
    if (e > 0 || arrivals == nullptr) return;
    const double rows = static_cast<double>(counts.arriving(place)) / static_cast<double>(counts.shape.share);
    if (rows > arrivals->most) arrivals->most = rows;
    if (!fit) arrivals->refused = 1;
  });
}

// Places arriving rows; one row of work for each pair of source rank and expert.
void place_rows(Stream& stream, const ArrivalCounts& counts, const Routing& arrival) {
  const std::int64_t held = counts.shape.held(), first = counts.shape.place * held;
  const std::int32_t* const offsets = arrival.offsets.as<std::int32_t>();
  std::int32_t *const row_of_slot = arrival.row_of_slot ? arrival.row_of_slot.as<std::int32_t>() : nullptr;
  std::int32_t *const token_of_row = arrival.token_of_row.as<std::int32_t>();
  launch_rows(stream, "arrive", counts.shape.ranks * held, KOKKOS_LAMBDA(const Row& row, std::int64_t i) {
    if (offsets[held] == 0) return;  // no row arrives
    const std::int64_t source = i / held, expert = i % held;
    std::int64_t arrived = 0, stands = offsets[expert];
    for (std::int64_t r = 0; r < source; ++r) {
      for (std::int64_t e = 0; e < held; ++e) arrived += counts.at(r, first + e);
      stands += counts.at(r, first + expert);
    }
    for (std::int64_t e = 0; e < expert; ++e) arrived += counts.at(source, first + e);
    std::int32_t* const tokens = token_of_row + stands;
    row.each(counts.at(source, first + expert), [=](std::int64_t j) {
      if (row_of_slot != nullptr) row_of_slot[arrived + j] = static_cast<std::int32_t>(stands + j);
      tokens[j] = static_cast<std::int32_t>(arrived + j);
    });
  });
}

}  // namespace

void count_rows(Stream& stream, const Tensor& counts, const Routing& routing) {
  require(routing.offsets.elements() == counts.elements() + 1, "count_rows", "counts are [E], offsets [E+1]");
  std::int32_t* const out = counts.as<std::int32_t>();
  const std::int32_t* const offsets = routing.offsets.as<std::int32_t>();
  launch(stream, "count_rows", counts.elements(),
         KOKKOS_LAMBDA(std::int64_t e) { out[e] = offsets[e + 1] - offsets[e]; });
}

void arrive(Stream& stream, const ArrivalShape& shape, const Routing& arrival, const Tensor& counts,
            DispatchStats* arrivals) {
  require(shape.ranks > 0 && shape.place < shape.ranks && shape.experts % shape.ranks == 0, "arrive",
          "the ranks of a group hold equal shares of the experts");
  require(counts.elements() == shape.ranks * shape.experts && arrival.offsets.elements() == shape.held() + 1, "arrive",
          "counts are [ranks, E], offsets [held + 1]");
  const ArrivalCounts all{counts.as<std::int32_t>(), shape};
  find_offsets(stream, all, arrival.offsets, arrivals);
  const bool known = static_cast<bool>(arrival.row_of_slot);
  const std::int64_t rows = arrival.token_of_row.elements(), arriving = known ? arrival.row_of_slot.elements() : 0;
  if (rows != arriving) {
    std::int32_t* const token_of_row = arrival.token_of_row.as<std::int32_t>();
    launch(stream, "arrive_no_row", rows, KOKKOS_LAMBDA(std::int64_t row) { token_of_row[row] = -1; });
  }
  if (arriving > 0 || !known) place_rows(stream, all, arrival);
}

void find_shifts(Stream& stream, const ArrivalShape& shape, const Tensor& shifts, const Tensor& counts) {
  require(counts.elements() == shape.ranks * shape.experts && shifts.elements() == shape.experts, "find_shifts",
          "counts are [ranks, E], shifts [E]");
  const ArrivalCounts all{counts.as<std::int32_t>(), shape};
  const std::int64_t place = shape.place;
  std::int32_t* const out = shifts.as<std::int32_t>();
  launch(stream, "find_shifts", shape.experts, KOKKOS_LAMBDA(std::int64_t e) {
    out[e] = all.fit() ? static_cast<std::int32_t>(all.shift(place, e)) : moe::no_room;
  });
}

}  // namespace tessera
