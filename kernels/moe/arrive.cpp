#include "kernels/base/launch.hpp"
#include "kernels/moe/moe.hpp"

namespace tessera {
namespace {

// Number of rows that each rank of a group sends to each expert.
struct Counts {
  const std::int32_t* rows;
  std::int64_t ranks, experts, held, multiple, share, room;

  KOKKOS_FUNCTION std::int64_t at(std::int64_t rank, std::int64_t expert) const {
    return rows[rank * experts + expert];
  }
  KOKKOS_FUNCTION std::int64_t of_expert(std::int64_t expert) const {
    std::int64_t sum = 0;
    for (std::int64_t r = 0; r < ranks; ++r) sum += at(r, expert);
    return sum;
  }
  KOKKOS_FUNCTION std::int64_t arriving(std::int64_t place) const {
    std::int64_t sum = 0;
    for (std::int64_t e = place * held; e < (place + 1) * held; ++e) sum += of_expert(e);
    return sum;
  }
  KOKKOS_FUNCTION bool fit() const {
    for (std::int64_t p = 0; p < ranks; ++p)
      if (arriving(p) > room) return false;
    return true;
  }
  // Where the rows of the e-th expert from `first` on begin.
  KOKKOS_FUNCTION std::int64_t offset(std::int64_t first, std::int64_t e) const {
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < e; ++i) begin += (of_expert(first + i) + multiple - 1) / multiple * multiple;
    return begin;
  }
};

void find_offsets(Stream& stream, const Counts& counts, std::int64_t place, const Tensor& offsets,
                  DispatchStats* arrivals) {
  const std::int64_t held = counts.held;
  std::int32_t* const out = offsets.as<std::int32_t>();
  launch(stream, "arrive_offsets", held + 1, KOKKOS_LAMBDA(std::int64_t e) {
    const bool fit = counts.fit();
    out[e] = fit ? static_cast<std::int32_t>(counts.offset(place * held, e)) : 0;
    if (e > 0 || arrivals == nullptr) return;
    const double rows = static_cast<double>(counts.arriving(place)) / static_cast<double>(counts.share);
    if (rows > arrivals->most) arrivals->most = rows;
    if (!fit) arrivals->refused = 1;
  });
}

// Places arriving rows; one row of work for each pair of source rank and expert.
void place_rows(Stream& stream, const Counts& counts, std::int64_t place, const Routing& arrival) {
  const std::int64_t held = counts.held, first = place * held;
  const std::int32_t* const offsets = arrival.offsets.as<std::int32_t>();
  std::int32_t *const row_of_slot = arrival.row_of_slot.as<std::int32_t>();
  std::int32_t *const token_of_row = arrival.token_of_row.as<std::int32_t>();
  launch_rows(stream, "arrive", counts.ranks * held, KOKKOS_LAMBDA(const Row& row, std::int64_t i) {
    const std::int64_t source = i / held, expert = i % held;
    std::int64_t arrived = 0, stands = offsets[expert];
    for (std::int64_t r = 0; r < source; ++r) {
      for (std::int64_t e = 0; e < held; ++e) arrived += counts.at(r, first + e);
      stands += counts.at(r, first + expert);
    }
    for (std::int64_t e = 0; e < expert; ++e) arrived += counts.at(source, first + e);
    std::int32_t *const rows = row_of_slot + arrived, *const tokens = token_of_row + stands;
    row.each(counts.at(source, first + expert), [=](std::int64_t j) {
      rows[j] = static_cast<std::int32_t>(stands + j);
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
  const Counts all{counts.as<std::int32_t>(), shape.ranks, shape.experts, shape.held(),
                   shape.row_multiple,        shape.share, shape.room};
  find_offsets(stream, all, shape.place, arrival.offsets, arrivals);
  const std::int64_t rows = arrival.token_of_row.elements(), arriving = arrival.row_of_slot.elements();
  if (rows != arriving) {
    std::int32_t* const token_of_row = arrival.token_of_row.as<std::int32_t>();
    launch(stream, "arrive_no_row", rows, KOKKOS_LAMBDA(std::int64_t row) { token_of_row[row] = -1; });
  }
  if (arriving > 0) place_rows(stream, all, shape.place, arrival);
}

}  // namespace tessera
