// Rows that move in peers' memory: ranks are buffers of this process, which reach each other's. Everything must have
// the bits of the path by an exchange: sorted by expert, sent, sorted again.
#include "kernels/moe/peer_rows.hpp"

#include <gtest/gtest.h>

#include <random>

#include "kernels/base/index.hpp"
#include "kernels/moe/arrival_counts.hpp"
#include "tests/reference/peer_rows.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::in_double, test::on_device, test::on_host, test::poisoned, test::uniform;
using Integers = std::vector<std::int32_t>;

/// Counts [ranks, experts] with experts and ranks that send or get nothing.
Integers drawn_counts(std::mt19937& random, std::int64_t ranks, std::int64_t experts) {
  Integers counts;
  std::vector<bool> silent, unwanted;
  for (std::int64_t r = 0; r < ranks; ++r) silent.push_back(random() % 4 == 0);
  for (std::int64_t e = 0; e < experts; ++e) unwanted.push_back(random() % 3 == 0);
  for (std::int64_t r = 0; r < ranks; ++r)
    for (std::int64_t e = 0; e < experts; ++e)
      counts.push_back(silent[static_cast<std::size_t>(r)] || unwanted[static_cast<std::size_t>(e)]
                           ? 0
                           : static_cast<std::int32_t>(random() % 40));
  return counts;
}

/// Where the rows of rank `source` for `expert` stand at the expert's rank, as the rows of an exchange do.
Integers exchanged(ArrivalShape shape, const Integers& counts, std::int64_t source, std::int64_t expert) {
  const auto at = [&](std::int64_t r, std::int64_t e) {
    return counts[static_cast<std::size_t>(r * shape.experts + e)];
  };
  shape.place = expert / shape.held();
  const std::int64_t first = shape.place * shape.held();
  std::int64_t arrived = 0;
  for (std::int64_t r = 0; r <= source; ++r)
    for (std::int64_t e = first; e < (r < source ? first + shape.held() : expert); ++e) arrived += at(r, e);
  const Integers rows = reference::arrive(shape, counts).row_of_slot;
  const auto begin = rows.begin() + arrived;
  return {begin, begin + at(source, expert)};
}

TEST(PeerRows, ShiftsLeadToTheRowsOfAnExchange) {
  Device device;
  std::mt19937 random(3);
  for (const auto& [ranks, experts] : {std::pair{1, 3}, {2, 4}, {2, 64}, {3, 6}, {4, 4}, {8, 256}})
    for (const std::int64_t multiple : {1, 16, 128})
      for (int draw = 0; draw < 4; ++draw) {
        SCOPED_TRACE(test::shown(ranks, experts, multiple, draw));
        const Integers counts = drawn_counts(random, ranks, experts);
        ArrivalShape shape{ranks, 0, experts, multiple, 10, 1 << 20};
        for (std::int64_t source = 0; source < ranks; ++source) {
          shape.place = source;
          const Tensor shifts = poisoned(device, DType::i32, Shape{experts});
          find_shifts(device.compute(), shape, shifts, on_device(device, counts));
          const Integers found = on_host<std::int32_t>(device, shifts);
          std::int32_t row = 0;  // of this rank, sorted by expert
          for (std::int64_t e = 0; e < experts; ++e) {
            const std::int64_t alone = moe::ArrivalCounts{counts.data(), shape}.shift(source, e);
            EXPECT_EQ(found[static_cast<std::size_t>(e)], alone);
            for (const std::int32_t wanted : exchanged(shape, counts, source, e))
              ASSERT_EQ(row++ + found[static_cast<std::size_t>(e)], wanted) << "rank " << source << ", expert " << e;
          }
        }
      }
}

TEST(PeerRows, NothingHasARowWhereARankHasNoRoom) {
  Device device;
  const Integers counts{1, 2, 3, 4, 0, 0, 4, 5};
  for (const std::int64_t room : {16, 15}) {
    const ArrivalShape shape{2, 1, 4, 1, 10, room};
    const Tensor shifts = poisoned(device, DType::i32, Shape{4});
    find_shifts(device.compute(), shape, shifts, on_device(device, counts));
    for (const std::int32_t shift : on_host<std::int32_t>(device, shifts)) EXPECT_EQ(shift < -1000, room == 15);
  }
}

struct Case {
  std::int64_t ranks;
  RouterShape shape;
  std::int64_t multiple;
  bool room;
  enum class Load { even, first_rank, last_expert } load;
};

/// The ranks of an expert group, each with its routed tokens.
template <class T>
struct Group {
  using A = Accumulator<T>;
  struct Rank {
    Routing routing, arrival;
    PeerRows peers;
    Arena arena;
    std::vector<T> x, dy, last;
  };

  Group(Device& on, const Case& of, std::int64_t width) : device(on), c(of), columns(width) {
    const std::int64_t slots = c.shape.slots();
    arrival = {c.ranks, 0, c.shape.experts, c.multiple, slots, c.room ? c.ranks * slots : slots - 1};
    const std::int64_t bytes = round_up(arrival.rows(arrival.room) * (columns + 1) * 64 + (1 << 14), Arena::alignment);
    const Tensor memory = poisoned(device, DType::u8, {c.ranks, bytes});
    Integers counts;
    for (std::int64_t r = 0; r < c.ranks; ++r) {
      ranks.push_back(rank(r, memory.row_range(r, 1)));
      const Integers offsets = on_host<std::int32_t>(device, ranks.back().routing.offsets);
      for (std::size_t e = 0; e + 1 < offsets.size(); ++e) counts.push_back(offsets[e + 1] - offsets[e]);
    }
    all_counts = on_device(device, Shape{c.ranks, c.shape.experts}, counts);
    for (std::int64_t r = 0; r < c.ranks; ++r) {
      std::vector<std::int64_t> distances;
      for (std::int64_t to = 0; to < c.ranks; ++to) distances.push_back((to - r) * bytes);
      Rank& own = ranks[static_cast<std::size_t>(r)];
      own.peers = {own.arena.keep(DType::i32, {c.shape.experts}), on_device(device, distances)};
      own.arrival.offsets = own.arena.keep(DType::i32, {arrival.held() + 1});
      own.arrival.token_of_row = own.arena.keep(DType::i32, {arrival.rows(arrival.room)});
      own.arrival.drops = true;
      find_shifts(device.compute(), of_rank(r), own.peers.shifts, all_counts);
      arrive(device.compute(), of_rank(r), own.arrival, all_counts, nullptr);
    }
  }

  ArrivalShape of_rank(std::int64_t r) const {
    ArrivalShape shape = arrival;
    shape.place = r;
    return shape;
  }
  /// Memory at the same place of every rank; its rows are poisoned.
  std::vector<Tensor> everywhere(DType type, Shape shape) {
    std::vector<Tensor> all;
    for (Rank& one : ranks) all.push_back(one.arena.keep(type, shape));
    return all;
  }
  std::int64_t rows() const { return arrival.rows(arrival.room); }

  Device& device;
  Case c;
  std::int64_t columns;
  ArrivalShape arrival;
  std::vector<Rank> ranks;
  std::vector<reference::Routed> routed;
  Tensor all_counts;

 private:
  Rank rank(std::int64_t r, const Tensor& memory) {
    const RouterShape& s = c.shape;
    const std::int64_t m = s.tokens(), e = s.experts, k = s.top_k;
    auto logits = uniform<A>(m * e, static_cast<std::uint64_t>(91 + r), -3, 3);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const std::int64_t expert = static_cast<std::int64_t>(i) % e;
      if (c.load == Case::Load::first_rank && expert >= e / c.ranks) logits[i] -= A(8);
      if (c.load == Case::Load::last_expert && expert + 1 == e) logits[i] += A(8);
    }
    Rank made;
    made.arena = Arena(static_cast<std::byte*>(memory.data), memory.bytes());
    const auto i32 = [&](Shape of) { return poisoned(device, DType::i32, of); };
    made.routing = {poisoned<A>(device, {m, e}), poisoned<A>(device, {m}), i32({m, k}), poisoned<A>(device, {m, k}),
                    i32({e + 1}), i32({m, k}), i32({s.rows()}), i32({s.sequences, e}), {}, {}, s.capacity > 0};
    Arena sorting = device.arena(Category::activations, 1 << 20);
    route(device.compute(), sorting, s, made.routing, on_device(device, Shape{m, e}, logits));
    routed.push_back(reference::route(s, in_double(logits)));
    const auto seed = static_cast<std::uint64_t>(200 + 3 * r);
    made.x = uniform<T>(m * columns, seed);
    made.dy = uniform<T>(m * columns, seed + 1);
    made.last = uniform<T>(m * columns, seed + 2);
    return made;
  }
};

/// Rows that each rank has sorted by expert, at the ranks of their experts.
template <class T>
std::vector<std::vector<T>> at_experts(const Group<T>& group, const std::vector<std::vector<T>>& sorted) {
  const auto places = reference::rows_at_experts(group.arrival, group.routed);
  const auto width = sorted.front().size() / static_cast<std::size_t>(group.c.shape.rows());
  std::vector<std::vector<T>> rows(places.size(), std::vector<T>(static_cast<std::size_t>(group.rows()) * width));
  for (std::size_t r = 0; r < places.size(); ++r)
    for (std::size_t slot = 0; slot < places[r].size(); ++slot) {
      if (places[r][slot] < 0) continue;
      const auto rank = static_cast<std::size_t>(group.routed[r].expert[slot] / group.arrival.held());
      const auto from = static_cast<std::size_t>(group.routed[r].row_of_slot[slot]) * width;
      const auto to = static_cast<std::size_t>(places[r][slot]) * width;
      std::copy_n(sorted[r].begin() + static_cast<std::ptrdiff_t>(from), width,
                  rows[rank].begin() + static_cast<std::ptrdiff_t>(to));
    }
  return rows;
}

/// The way back: the rows of each rank's slots, sorted by expert; 0 where there is none.
template <class T>
std::vector<std::vector<T>> at_tokens(const Group<T>& group, const std::vector<std::vector<T>>& rows) {
  const auto places = reference::rows_at_experts(group.arrival, group.routed);
  const auto width = static_cast<std::size_t>(group.columns);
  std::vector<std::vector<T>> sorted(places.size(),
                                     std::vector<T>(static_cast<std::size_t>(group.c.shape.rows()) * width));
  for (std::size_t r = 0; r < places.size(); ++r)
    for (std::size_t slot = 0; slot < places[r].size(); ++slot) {
      if (places[r][slot] < 0) continue;
      const auto rank = static_cast<std::size_t>(group.routed[r].expert[slot] / group.arrival.held());
      std::copy_n(rows[rank].begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(places[r][slot]) * width),
                  width,
                  sorted[r].begin() +
                      static_cast<std::ptrdiff_t>(static_cast<std::size_t>(group.routed[r].row_of_slot[slot]) * width));
    }
  return sorted;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [ranks, experts] : {std::pair{1, 3}, {2, 4}, {3, 12}, {4, 8}})
    for (const std::int64_t k : {1, 3})
      for (const std::int64_t multiple : {1, 16})
        for (const auto load : {Case::Load::even, Case::Load::first_rank, Case::Load::last_expert}) {
          if (load == Case::Load::first_rank && experts / ranks < k) continue;
          all.push_back({ranks, {2, 7, experts, k, true}, multiple, true, load});
        }
  all.push_back({2, {1, 1, 4, 2, true}, 32, true, Case::Load::even});
  all.push_back({2, {2, 9, 4, 2, true}, 1, false, Case::Load::last_expert});
  for (const std::int64_t capacity : {1, 3}) {
    all.push_back({3, {2, 9, 6, 3, true}, 16, true, Case::Load::even});
    all.back().shape.capacity = capacity;
  }
  return all;
}

template <class T> class InPeersMemory : public ::testing::Test {};
TYPED_TEST_SUITE(InPeersMemory, test::Reals);
constexpr std::int64_t widths[] = {1, 33, 72, 520};

/// Calls `check` with a group of each case and width, and the numbers of its ranks.
template <class T, class Check>
void for_each_group(const Check& check) {
  for (const Case& one : cases())
    for (const std::int64_t columns : widths) {
      SCOPED_TRACE(test::shown(one.ranks, one.shape.experts, one.shape.top_k, one.multiple, static_cast<int>(one.load),
                               one.shape.capacity, columns));
      Device device;
      Group<T> group(device, one, columns);
      std::vector<std::size_t> numbers(group.ranks.size());
      for (std::size_t r = 0; r < numbers.size(); ++r) numbers[r] = r;
      check(group, numbers);
      if (::testing::Test::HasFailure()) return;
    }
}

TYPED_TEST(InPeersMemory, RowsAndTheirNumbersArriveSorted) {
  using T = TypeParam;
  for_each_group<T>([](Group<T>& g, const std::vector<std::size_t>& numbers) {
    Stream& stream = g.device.compute();
    const Shape tokens{g.c.shape.tokens(), g.columns}, sorted{g.c.shape.rows(), g.columns};
    const auto plain = g.everywhere(dtype_of<T>, {g.rows(), g.columns});
    const auto weighted = g.everywhere(dtype_of<T>, {g.rows(), g.columns});
    const auto numbered = g.everywhere(DType::i64, {g.rows(), 1});
    std::vector<std::vector<T>> permuted, scaled;
    std::vector<std::vector<std::int64_t>> counted;
    for (const std::size_t r : numbers) {
      const auto& [routing, arrival, peers, arena, x, dy, last] = g.ranks[r];
      for (const Tensor& rows : {plain[r], weighted[r], numbered[r]}) clear_gaps(stream, rows, arrival);
      const Tensor in = on_device(g.device, tokens, x), up = on_device(g.device, tokens, dy);
      const auto first = static_cast<std::int64_t>(r) * g.c.shape.tokens();
      send_rows(stream, plain[r], in, routing, peers, Weighted::no);
      send_rows(stream, weighted[r], up, routing, peers, Weighted::yes);
      send_numbers(stream, numbered[r], routing, peers, first);
      const Tensor own = poisoned<T>(g.device, sorted), d = poisoned<T>(g.device, sorted);
      permute_forward(stream, own, in, routing);
      permuted.push_back(on_host<T>(g.device, own));
      combine_backward(stream, d, poisoned(g.device, routing.weight.type, routing.weight.shape), up, own, routing);
      scaled.push_back(on_host<T>(g.device, d));
      const Tensor numbers_here = poisoned(g.device, DType::i64, Shape{g.c.shape.rows()});
      number_rows(stream, numbers_here, routing, first);
      counted.push_back(on_host<std::int64_t>(g.device, numbers_here));
    }
    const auto wanted = at_experts(g, permuted), wanted_weighted = at_experts(g, scaled);
    for (const std::size_t r : numbers) {
      EXPECT_TRUE(test::same_bits(on_host<T>(g.device, plain[r]), wanted[r])) << r;
      EXPECT_TRUE(test::same_bits(on_host<T>(g.device, weighted[r]), wanted_weighted[r])) << r;
      std::vector<std::int64_t> rows(static_cast<std::size_t>(g.rows()));
      const auto places = reference::rows_at_experts(g.arrival, g.routed);
      for (std::size_t s = 0; s < places.size(); ++s)
        for (std::size_t slot = 0; slot < places[s].size(); ++slot)
          if (places[s][slot] >= 0 && g.routed[s].expert[slot] / g.arrival.held() == static_cast<std::int64_t>(r))
            rows[static_cast<std::size_t>(places[s][slot])] =
                counted[s][static_cast<std::size_t>(g.routed[s].row_of_slot[slot])];
      EXPECT_EQ(on_host<std::int64_t>(g.device, numbered[r]), rows) << r;
    }
  });
}

TYPED_TEST(InPeersMemory, AnswersAndGradientsAreThoseOfSortedRows) {
  using T = TypeParam;
  for_each_group<T>([](Group<T>& g, const std::vector<std::size_t>& numbers) {
    Stream& stream = g.device.compute();
    const Shape tokens{g.c.shape.tokens(), g.columns}, sorted{g.c.shape.rows(), g.columns};
    const auto answers = g.everywhere(dtype_of<T>, {g.rows(), g.columns});
    std::vector<std::vector<T>> values;
    for (const std::size_t r : numbers) {
      values.push_back(uniform<T>(g.rows() * g.columns, 500 + r));
      g.device.upload(stream, answers[r], values.back().data());
    }
    const auto home = at_tokens(g, values);
    for (const std::size_t r : numbers) {
      const auto& [routing, arrival, peers, arena, x, dy, last] = g.ranks[r];
      const Tensor in = on_device(g.device, sorted, home[r]), term = on_device(g.device, tokens, last);
      const Tensor y = poisoned<T>(g.device, tokens), wanted = poisoned<T>(g.device, tokens);
      for (const Tensor& also : {Tensor{}, term}) {
        const Tensor kept = on_device(g.device, sorted, std::vector<T>(home[r].size()));
        fetch_answers(stream, y, kept, answers[r], routing, peers, also);
        combine_forward(stream, wanted, in, routing, also);
        EXPECT_TRUE(test::same_bits(on_host<T>(g.device, y), on_host<T>(g.device, wanted))) << r;
        EXPECT_TRUE(test::same_bits(on_host<T>(g.device, kept), home[r])) << r;
        fetch_gradients(stream, y, answers[r], routing, peers, also);
        permute_backward(stream, wanted, in, routing, also);
        EXPECT_TRUE(test::same_bits(on_host<T>(g.device, y), on_host<T>(g.device, wanted))) << r;
      }
      const Tensor kept = on_device(g.device, sorted, std::vector<T>(home[r].size()));
      fetch_answers(stream, {}, kept, answers[r], routing, peers);
      EXPECT_TRUE(test::same_bits(on_host<T>(g.device, kept), home[r])) << "without a sum";
      const Tensor up = on_device(g.device, tokens, dy), rows = poisoned<T>(g.device, sorted);
      const Tensor both = poisoned(g.device, routing.weight.type, routing.weight.shape),
                   alone = poisoned(g.device, routing.weight.type, routing.weight.shape);
      combine_backward(stream, rows, both, up, in, routing);
      combine_backward(stream, {}, alone, up, in, routing);
      using A = Accumulator<T>;
      EXPECT_TRUE(test::same_bits(on_host<A>(g.device, alone), on_host<A>(g.device, both))) << "without rows";
    }
  });
}

TEST(PeerRows, RefuseWhatDoesNotFit) {
  Device device;
  Group<float> g(device, {2, {1, 3, 4, 2, true}, 1, true, Case::Load::even}, 5);
  const auto& one = g.ranks.front();
  Stream& s = device.compute();
  const Tensor three = poisoned<float>(device, {3, 5}), rows = g.everywhere(DType::f32, {g.rows(), 5}).front();
  EXPECT_THROW(send_rows(s, rows, rows, one.routing, one.peers, Weighted::no), Error);
  EXPECT_THROW(send_rows(s, rows, poisoned<bf16>(device, {3, 5}), one.routing, one.peers, Weighted::no), Error);
  EXPECT_THROW(fetch_answers(s, three, three, rows, one.routing, one.peers), Error) << "no place for each slot";
  EXPECT_THROW(fetch_gradients(s, poisoned<float>(device, {3, 4}), rows, one.routing, one.peers), Error);
  EXPECT_THROW(send_numbers(s, rows, one.routing, one.peers, 0), Error);
  EXPECT_THROW(find_shifts(s, g.arrival, poisoned(device, DType::i32, Shape{3}), g.all_counts), Error);
}

}  // namespace
}  // namespace tessera
