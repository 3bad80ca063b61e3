// One conformance suite for every back end and wrapper, at any number of ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <deque>
#include <numeric>
#include <optional>
#include <random>

#include "core/comm/mpi.hpp"
#include "core/comm/staged.hpp"
#include "core/device/device.hpp"
#include "tests/support/delaying.hpp"
#include "tests/support/integers.hpp"
#include "tests/support/throttled.hpp"

namespace tessera {
namespace {

constexpr std::chrono::seconds timeout(300);
using Counts = std::vector<std::int64_t>;
using test::Buffer, test::value, test::Values;

Mesh over_mpi(Mpi& mpi, Device& device, MpiOptions options = {}) {
  options.transport = Transport::mpi;
  return mpi.mesh(device, mpi.ranks(), timeout, options);
}
Mesh whole(Mpi& mpi, Device& device, const MpiOptions& options = {}) {
  return mpi.mesh(device, mpi.ranks(), timeout, options);
}
Mesh wrapped(Mesh mesh, const Mesh::Wrap& wrapper) {
  mesh.wrap(wrapper);
  return mesh;
}
/// Size of expert groups: two ranks if that divides the number of ranks, else one.
Mesh of_pairs(Mpi& mpi, Device& device, Transport transport) {
  return mpi.mesh(device, mpi.ranks(mpi.size() % 2 == 0 ? 2 : 1), timeout, {.transport = transport});
}

Communicator& world_of(Mesh& mesh) { return mesh.world(); }
Communicator& expert_data_of(Mesh& mesh) { return mesh.of(ProcessGroup::expert); }
Communicator& experts_of(Mesh& mesh) { return mesh.experts(); }

using Inner = std::unique_ptr<Communicator>;

struct BackEnd {
  const char* name;
  bool one_rank_only;
  Mesh (*make)(Mpi&, Device&);
  Communicator& (*group)(Mesh&) = world_of;
  bool opens = false;  ///< whether buffers are opened before each all_gather and all_to_all
};

// "world" is NCCL if every rank has a GPU.
const BackEnd back_ends[] = {
    {"self", true, [](Mpi&, Device&) { return self_mesh(); }},
    {"world", false, [](Mpi& m, Device& d) { return whole(m, d); }},
    {"world_opened", false, [](Mpi& m, Device& d) { return whole(m, d); }, world_of, true},
    {"expert_data_opened", false, [](Mpi& m, Device& d) { return of_pairs(m, d, Transport::fastest); }, expert_data_of,
     true},
    {"world_compared", false, [](Mpi& m, Device& d) { return whole(m, d, {.compare = Compare::before_each}); }},
    {"expert_data", false, [](Mpi& m, Device& d) { return of_pairs(m, d, Transport::fastest); }, expert_data_of},
    {"experts", false, [](Mpi& m, Device& d) { return of_pairs(m, d, Transport::fastest); }, experts_of},
    {"mpi", false, [](Mpi& m, Device& d) { return over_mpi(m, d); }},
    {"mpi_expert_data", false, [](Mpi& m, Device& d) { return of_pairs(m, d, Transport::mpi); }, expert_data_of},
    {"mpi_experts", false, [](Mpi& m, Device& d) { return of_pairs(m, d, Transport::mpi); }, experts_of},
    {"mpi_compared", false, [](Mpi& m, Device& d) { return over_mpi(m, d, {.compare = Compare::before_each}); }},
    // With a limit of 64, larger buffers travel in blocks and in pieces, as buffers of more than 2^31 elements do.
    {"mpi_pieces", false, [](Mpi& m, Device& d) { return over_mpi(m, d, {.most = 64}); }},
    {"staged", false,
     [](Mpi& m, Device& d) {
       if (d.compute().native()) return over_mpi(m, d);
       return wrapped(whole(m, d), [&](Inner one) { return staged(d, std::move(one)); });
     }},
    {"throttled", false,
     [](Mpi& m, Device& d) {
       return wrapped(whole(m, d), [](Inner one) { return test::throttled(std::move(one), 20, 1e9); });
     }},
    {"delaying", false,
     [](Mpi& m, Device& d) {
       return wrapped(whole(m, d), [](Inner one) { return test::delaying(std::move(one), 7, 300); });
     }},
    {"recording", false,
     [](Mpi& m, Device& d) {
       static std::vector<Record> records;
       return wrapped(whole(m, d), [](Inner one) { return recording(std::move(one), records); });
     }},
    {"nested", false,
     [](Mpi& m, Device& d) {
       return wrapped(whole(m, d),
                      [](Inner one) { return test::throttled(test::delaying(std::move(one), 3, 100), 5, 1e9); });
     }},
};

/// One exchange with its buffers and the expected result.
struct Case {
  Case(Device& device, DType type, Counts c, Counts d, std::int64_t send_size, std::int64_t receive_size)
      : counts(std::move(c)),
        displacements(std::move(d)),
        send(device, type, send_size),
        receive(device, type, receive_size) {}
  /// The exchange; an empty buffer has the other one's address, as may happen in an arena.
  Exchange exchange() const {
    const Tensor &from = send.tensor, &to = receive.tensor;
    const auto placed = [](const Tensor& one, const Tensor& other) {
      return one.elements() > 0 ? one : other.flat(0, 0);
    };
    return {in_place ? Tensor{} : placed(from, to), placed(to, from), counts, displacements, arrivals};
  }

  /// The received values that are compared with `expected`.
  Values received() const { return receive.read(); }

  Counts counts, displacements, arrivals;
  Buffer send, receive;
  Values expected;
  bool in_place = false;  ///< whether this rank's part is in `receive` already
};

/// Displacements with `gap` elements before each part.
Counts begins(const Counts& counts, std::int64_t gap) {
  Counts out;
  std::int64_t at = 0;
  for (std::int64_t n : counts) {
    out.push_back(at += gap);
    at += n;
  }
  return out;
}
std::int64_t extent(const Counts& counts, const Counts& displacements) {
  return counts.empty() ? 0 : displacements.back() + counts.back();
}

class Collectives : public testing::TestWithParam<BackEnd> {
 protected:
  void SetUp() override {
    if (GetParam().one_rank_only && mpi.size() > 1) GTEST_SKIP() << "one rank only";
    mesh.emplace(GetParam().make(mpi, device));
    communicator = &GetParam().group(*mesh);
    if (GetParam().group == world_of) {
      EXPECT_EQ(communicator->rank(), mpi.rank());
      EXPECT_EQ(communicator->size(), mpi.size());
    }
  }
  void TearDown() override {
    if (mesh && mesh->log()) mesh->log()->compare(*control);
  }
  Stream& stream() { return device.compute(); }
  int rank() const { return communicator->rank(); }
  int size() const { return communicator->size(); }
  std::size_t index() const { return static_cast<std::size_t>(rank()); }

  /// Counts by number of a cut: even, odd sizes, one rank empty, all but the last empty, all empty.
  Counts counts_of(int cut, std::int64_t unit) const {
    Counts counts;
    for (int r = 0; r < size(); ++r) {
      const std::int64_t options[] = {5, 3 + 2 * r, r == 1 ? 0 : 7, r == size() - 1 ? 11 : 0, 0};
      counts.push_back(unit * options[cut]);
    }
    return counts;
  }

  Case& all_gather(DType type, const Counts& counts, std::int64_t gap, bool in_place = true) {
    const Counts at = begins(counts, gap);
    Case& c = cases.emplace_back(device, type, counts, at, counts[index()], extent(counts, at));
    c.in_place = in_place;
    const int salt = static_cast<int>(cases.size());
    c.send.fill([&](std::int64_t i) { return value(salt, rank(), at[index()] + i); });
    c.receive.fill([&](std::int64_t i) {
      const bool mine = i >= at[index()] && i < at[index()] + counts[index()];
      return mine && in_place ? value(salt, rank(), i) : 0;
    });
    c.expected.assign(static_cast<std::size_t>(extent(counts, at)), 0);
    for (int r = 0; r < size(); ++r)
      for (std::int64_t i = at[std::size_t(r)]; i < at[std::size_t(r)] + counts[std::size_t(r)]; ++i)
        c.expected[std::size_t(i)] = c.receive.cut(value(salt, r, i));
    return c;
  }

  Case& all_to_all(DType type, const Counts& counts, std::int64_t gap) {
    const Counts at = begins(counts, gap);
    Case& c = cases.emplace_back(device, type, counts, at, extent(counts, at), (size() - 1) * counts[index()]);
    const int salt = static_cast<int>(cases.size());
    c.send.fill([&](std::int64_t i) { return value(salt, rank(), i); });
    c.receive.fill([](std::int64_t) { return 0; });
    for (int r = 0; r < size(); ++r)
      for (std::int64_t i = 0; r != rank() && i < counts[index()]; ++i)
        c.expected.push_back(c.receive.cut(value(salt, r, at[index()] + i)));
    return c;
  }

  /// Elements that rank `from` sends to rank `to`, by number of a pattern. In order: even, all different, some pairs
  /// empty, all to the last, nothing, all to themselves, all from the last.
  std::int64_t rows_of(int pattern, std::int64_t unit, int from, int to) const {
    const std::int64_t options[] = {5, 3 + 2 * from + to, (from + 2 * to) % 3 == 0 ? 0 : 7 + from,
                                    to == size() - 1 ? 11 : 0, 0, from == to ? 6 : 0, from == size() - 1 ? 4 : 0};
    return unit * options[pattern];
  }

  /// `spare`: elements of the receive buffer beyond those that arrive.
  Case& exchange_rows(DType type, int pattern, std::int64_t unit, std::int64_t gap, std::int64_t spare) {
    Counts counts, arrivals;
    for (int r = 0; r < size(); ++r) {
      counts.push_back(rows_of(pattern, unit, rank(), r));
      arrivals.push_back(rows_of(pattern, unit, r, rank()));
    }
    const std::int64_t received = std::accumulate(arrivals.begin(), arrivals.end(), spare);
    const Counts at = begins(counts, gap);
    Case& c = cases.emplace_back(device, type, counts, at, extent(counts, at), received);
    c.arrivals = arrivals;
    const int salt = static_cast<int>(cases.size());
    c.send.fill([&](std::int64_t i) { return value(salt, rank(), i); });
    c.receive.fill([](std::int64_t) { return 99; });
    for (int r = 0; r < size(); ++r) {
      std::int64_t from = gap;
      for (int to = 0; to < rank(); ++to) from += rows_of(pattern, unit, r, to) + gap;
      for (std::int64_t i = 0; i < arrivals[std::size_t(r)]; ++i)
        c.expected.push_back(c.receive.cut(value(salt, r, from + i)));
    }
    c.expected.resize(static_cast<std::size_t>(received), 99);
    return c;
  }

  /// What rank - 1 sends arrives; the first rank's buffer stays as it is.
  Case& passed_on(DType type, std::int64_t n) {
    Case& c = cases.emplace_back(device, type, Counts(), Counts(), n, n);
    const int salt = static_cast<int>(cases.size());
    c.send.fill([&](std::int64_t i) { return value(salt, rank(), i); });
    c.receive.fill([](std::int64_t) { return 99; });
    for (std::int64_t i = 0; i < n; ++i)
      c.expected.push_back(rank() > 0 ? c.receive.cut(value(salt, rank() - 1, i)) : 99);
    return c;
  }

  Case& reduction(Collective collective, DType type, std::int64_t n) {
    Case& c = cases.emplace_back(device, type, Counts(), Counts(), 0, n);
    const int salt = static_cast<int>(cases.size());
    // Numbers of both signs, of each width.
    const auto of = [&](int r, std::int64_t i) {
      const std::uint64_t v = c.receive.cut(value(salt, r, i));
      return type == DType::u16 ? v % 0x7F81 : v;  // numbers of bf16 from 0 to infinity
    };
    c.receive.fill([&](std::int64_t i) { return of(rank(), i); });
    for (std::int64_t i = 0; i < n; ++i) {
      std::uint64_t result = of(0, i);
      for (int r = 1; r < size(); ++r) {
        const std::uint64_t v = of(r, i);
        const bool greater =
            type == DType::i64 ? static_cast<std::int64_t>(v) > static_cast<std::int64_t>(result) : v > result;
        result = collective == Collective::all_reduce_sum ? result + v : greater ? v : result;
      }
      c.expected.push_back(result);
    }
    return c;
  }

  Pending begin(Collective collective, const std::vector<const Case*>& of) {
    std::vector<Exchange> exchanges;  // may be destroyed before the operation has ended; counts and buffers may not
    for (const Case* c : of) exchanges.push_back(c->exchange());
    if (GetParam().opens && (collective == Collective::all_gather || collective == Collective::all_to_all)) {
      std::vector<Exchange*> opened;
      for (Exchange& exchange : exchanges) opened.push_back(&exchange);
      communicator->open(opened);
    }
    return communicator->submit(stream(), {collective, exchanges, static_cast<int>(cases.size()), "conformance"});
  }
  void run(Collective collective, const Case& c) { begin(collective, {&c}).wait(stream()); }

  void expect_all() {
    ASSERT_FALSE(cases.empty());
    for (std::size_t i = 0; i < cases.size(); ++i)
      EXPECT_EQ(cases[i].received(), cases[i].expected) << "case " << i;
  }

  Device device;
  Mpi mpi{nullptr, nullptr};
  std::unique_ptr<Control> control = mpi.control(timeout);
  std::optional<Mesh> mesh;
  Communicator* communicator = nullptr;
  std::deque<Case> cases;
};

constexpr DType all_types[] = {DType::u8,  DType::bf16, DType::u16, DType::f32,
                               DType::i32, DType::f64,  DType::i64, DType::u64};

TEST_P(Collectives, AllGatherOfEveryTypeAndCut) {
  for (DType type : all_types)
    for (int cut = 0; cut < 5; ++cut) run(Collective::all_gather, all_gather(type, counts_of(cut, 4), 4));
  expect_all();
}

TEST_P(Collectives, AllGatherOfPartsThatLieElsewhere) {
  for (DType type : all_types)
    for (int cut = 0; cut < 5; ++cut) run(Collective::all_gather, all_gather(type, counts_of(cut, 4), 4, false));
  expect_all();
}

TEST_P(Collectives, AllToAllOfEveryTypeAndCut) {
  for (DType type : all_types)
    for (int cut = 0; cut < 5; ++cut) run(Collective::all_to_all, all_to_all(type, counts_of(cut, 8), 0));
  expect_all();
}

TEST_P(Collectives, AllToAllLeavesOutGaps) {
  run(Collective::all_to_all, all_to_all(DType::f32, counts_of(1, 32), 32));
  expect_all();
}

TEST_P(Collectives, RowsOfEveryTypeAndPattern) {
  for (DType type : all_types)
    for (int pattern = 0; pattern < 7; ++pattern)
      for (std::int64_t gap : {0, 8}) run(Collective::exchange_rows, exchange_rows(type, pattern, 8, gap, gap));
  const Case& values = exchange_rows(DType::bf16, 2, 16, 0, 32);
  const Case& numbers = exchange_rows(DType::i64, 2, 1, 0, 2);
  begin(Collective::exchange_rows, {&values, &numbers}).wait(stream());
  expect_all();
}

TEST_P(Collectives, PassOnAlongTheLine) {
  const auto pass = [&](const std::vector<const Case*>& of, bool sends) {
    std::vector<Exchange> exchanges;
    for (const Case* c : of) {
      Exchange& exchange = exchanges.emplace_back(c->exchange());
      if (sends || rank() == 0) exchange.receive = {};
      if (!sends || rank() + 1 == size()) exchange.send = {};
    }
    return communicator->submit(stream(), {Collective::pass_on, exchanges, -1, "conformance"});
  };
  for (DType type : all_types)
    for (std::int64_t n : {0, 1, 200}) {
      const Case &one = passed_on(type, n), &other = passed_on(DType::f32, n + 3);
      pass({&one, &other}, false).wait(stream());  // a rank sends when it has received
      pass({&one, &other}, true).wait(stream());
    }
  const Case &first = passed_on(DType::f32, 50), &second = passed_on(DType::f32, 50);
  Pending took = pass({&first}, false), took_more = pass({&second}, false);
  Pending sent = pass({&first}, true), sent_more = pass({&second}, true);
  for (Pending* pending : {&took, &took_more, &sent, &sent_more}) pending->wait(stream());
  expect_all();
}

TEST_P(Collectives, LargeBuffers) {
  // With a limit of 64 a call reaches 64 blocks of 64 elements.
  const std::int64_t unit = std::string(GetParam().name) == "mpi_pieces" ? 1 << 6 : 1 << 15;
  run(Collective::all_gather, all_gather(DType::u8, counts_of(1, unit), 0));
  run(Collective::all_to_all, all_to_all(DType::f32, counts_of(1, unit), 0));
  run(Collective::exchange_rows, exchange_rows(DType::f32, 1, unit, 0, 0));
  run(Collective::all_reduce_max, reduction(Collective::all_reduce_max, DType::u16, unit * 3 + 1));
  expect_all();
}

TEST_P(Collectives, Reductions) {
  for (std::int64_t n : {0, 1, 17, 100}) {
    for (DType type : {DType::u16, DType::i64, DType::u64})
      run(Collective::all_reduce_max, reduction(Collective::all_reduce_max, type, n));
    for (DType type : {DType::i64, DType::u64})
      run(Collective::all_reduce_sum, reduction(Collective::all_reduce_sum, type, n));
  }
  expect_all();
}

TEST_P(Collectives, CoalescedBuffersOfDifferentTypes) {
  const Case& bytes = all_gather(DType::u8, counts_of(1, 4), 0);
  const Case& none = all_gather(DType::f32, counts_of(4, 4), 0);
  const Case& scales = all_gather(DType::f32, counts_of(2, 4), 4);
  begin(Collective::all_gather, {&bytes, &none, &scales}).wait(stream());
  const Case& a = all_to_all(DType::f32, counts_of(0, 4), 0);
  const Case& b = all_to_all(DType::f64, counts_of(3, 4), 0);
  begin(Collective::all_to_all, {&a, &b}).wait(stream());
  begin(Collective::all_reduce_sum, {}).wait(stream());
  expect_all();
}

TEST_P(Collectives, ManyUnderWayEndInAnyOrder) {
  std::vector<Pending> pending;
  for (int i = 0; i < 10; ++i) {
    pending.push_back(begin(Collective::all_gather, {&all_gather(DType::u8, counts_of(i % 5, 4), 0)}));
    pending.push_back(begin(Collective::all_to_all, {&all_to_all(DType::f32, counts_of((i + 1) % 5, 4), 0)}));
    pending.push_back(begin(Collective::all_reduce_max, {&reduction(Collective::all_reduce_max, DType::u16, i)}));
    pending.push_back(begin(Collective::all_reduce_sum, {&reduction(Collective::all_reduce_sum, DType::i64, 3 * i)}));
    pending.push_back(begin(Collective::exchange_rows, {&exchange_rows(DType::u16, i % 7, 3, 0, 0)}));
  }
  // Each rank waits in its own order, since waiting is not collective.
  std::shuffle(pending.begin(), pending.end(), std::mt19937(static_cast<unsigned>(rank())));
  for (Pending& one : pending) one.wait(stream());
  expect_all();
}

TEST_P(Collectives, DroppedPendingFinishes) {
  { const Pending dropped = begin(Collective::all_gather, {&all_gather(DType::f32, counts_of(1, 4), 0)}); }
  Pending replaced = begin(Collective::all_to_all, {&all_to_all(DType::f32, counts_of(2, 4), 0)});
  replaced = begin(Collective::all_reduce_max, {&reduction(Collective::all_reduce_max, DType::u16, 9)});
  replaced = Pending();
  expect_all();
}

TEST_P(Collectives, PendingMovesAndEmpties) {
  Pending first = begin(Collective::all_reduce_max, {&reduction(Collective::all_reduce_max, DType::u16, 9)});
  EXPECT_TRUE(first);
  Pending second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move)
  second.wait(stream());
  EXPECT_FALSE(second);
  EXPECT_THROW(second.wait(stream()), Error);
  expect_all();
}

TEST_P(Collectives, RefusesWhatExchangeDoesNotAllow) {
  const auto refused = [&](Collective collective, const Exchange& exchange) {
    EXPECT_THROW(communicator->submit(stream(), {collective, {&exchange, 1}, -1, ""}), Error) << name_of(collective);
  };
  const Case& sound = all_to_all(DType::f32, counts_of(0, 4), 0);
  Exchange wrong = sound.exchange();
  wrong.counts = wrong.counts.subspan(1);
  refused(Collective::all_to_all, wrong);
  refused(Collective::all_gather, wrong);
  wrong = sound.exchange();
  wrong.receive.type = DType::i32;
  refused(Collective::all_to_all, wrong);
  wrong = sound.exchange();
  wrong.receive = wrong.send.flat(0, wrong.receive.elements() + 1);
  refused(Collective::all_to_all, wrong);
  wrong = sound.exchange();
  wrong.send = wrong.send.flat(0, wrong.send.elements() - 1);
  refused(Collective::all_to_all, wrong);
  refused(Collective::exchange_rows, sound.exchange());
  wrong = exchange_rows(DType::f32, 1, 4, 0, 0).exchange();
  wrong.receive = wrong.receive.flat(0, wrong.receive.elements() - 1);
  refused(Collective::exchange_rows, wrong);
  cases.pop_back();
  refused(Collective::all_reduce_sum, sound.exchange());
  refused(Collective::all_reduce_max, sound.exchange());
  run(Collective::all_to_all, sound);  // the refused operation left nothing behind
  expect_all();
}

INSTANTIATE_TEST_SUITE_P(BackEnds, Collectives, testing::ValuesIn(back_ends),
                         [](const auto& back_end) { return back_end.param.name; });

class OverMpi : public testing::Test {
 protected:
  Exchange everywhere(const Tensor& t) { return {{}, t, {}, {}}; }
  Pending largest(Communicator& c, const Tensor& t) {
    const Exchange exchange = everywhere(t);
    return c.submit(device.communication(), {Collective::all_reduce_max, {&exchange, 1}, 4, "test"});
  }
  Device device;
  Mpi mpi{nullptr, nullptr};
};

/// World ranks of the members of `group`, in its order.
std::vector<std::int64_t> members(Device& device, Communicator& group, int rank_in_world) {
  const auto size = static_cast<std::size_t>(group.size()), rank = static_cast<std::size_t>(group.rank());
  std::vector<std::int64_t> numbers(size, -1);
  numbers[rank] = rank_in_world;
  const Tensor t = device.allocate(Category::batch, DType::i64, {group.size()});
  device.upload(device.compute(), t, numbers.data());
  const Counts counts(size, 1), at = begins(counts, 0);
  const Exchange exchange{{}, t, counts, at};
  group.submit(device.compute(), {Collective::all_gather, {&exchange, 1}, 0, "members"}).wait(device.compute());
  device.download(device.compute(), numbers.data(), t);
  return numbers;
}

TEST_F(OverMpi, EveryGroupOfAMeshConnectsItsOwnRanks) {
  for (Transport transport : {Transport::fastest, Transport::mpi})
    for (int expert = 1; expert <= mpi.size(); ++expert) {
      if (mpi.size() % expert != 0) {
        EXPECT_THROW(mpi.ranks(expert), Error);
        continue;
      }
      Mesh mesh = mpi.mesh(device, mpi.ranks(expert), timeout, {.transport = transport});
      std::vector<std::int64_t> all, sharing, neighbours;
      for (int r = 0; r < mpi.size(); ++r) {
        all.push_back(r);
        if (r % expert == mpi.rank() % expert) sharing.push_back(r);
        if (r / expert == mpi.rank() / expert) neighbours.push_back(r);
      }
      EXPECT_EQ(members(device, mesh.world(), mpi.rank()), all);
      EXPECT_EQ(members(device, mesh.of(ProcessGroup::dense), mpi.rank()), all);
      EXPECT_EQ(members(device, mesh.of(ProcessGroup::expert), mpi.rank()), sharing) << expert;
      EXPECT_EQ(members(device, mesh.experts(), mpi.rank()), neighbours) << expert;
      EXPECT_EQ(&mesh.of(ProcessGroup::expert) == &mesh.world(), expert == 1 || mpi.size() == 1);
    }
}

TEST_F(OverMpi, RefusesAMeshOfOtherRanks) {
  EXPECT_THROW(mpi.mesh(device, Ranks::in_world(mpi.size() + 1, mpi.rank()), timeout), Error);
}

TEST_F(OverMpi, MovesWhenTheStreamProgresses) {
  if (device.compute().native()) GTEST_SKIP() << "a GPU's stream moves by itself";
  Mesh mesh = whole(mpi, device);
  const std::int64_t n = 1 << 20;
  const Tensor t = device.allocate(Category::batch, DType::u16, {n});
  std::vector<std::uint16_t> values(static_cast<std::size_t>(n), static_cast<std::uint16_t>(mpi.rank() == 0 ? 9 : 0));
  device.upload(device.communication(), t, values.data());
  Pending pending = largest(mesh.world(), t);
  for (int turn = 0; turn < 1'000'000 && t.as<std::uint16_t>()[n - 1] != 9; ++turn) {
    device.compute().progress();
    usleep(200);
  }
  EXPECT_EQ(t.as<std::uint16_t>()[n - 1], 9) << "nothing but progress() moved it";
  pending.wait(device.communication());
}

TEST_F(OverMpi, RefusesMoreThanItsSlots) {
  Mesh mesh = whole(mpi, device);
  if (mesh.world().name() == "self") GTEST_SKIP() << "one rank's collectives end at once";
  const std::uint16_t one = 1;
  const auto number = [&] {
    const Tensor t = device.allocate(Category::batch, DType::u16, {1});
    device.upload(device.communication(), t, &one);
    return t;
  };
  const Tensor t = number();
  std::vector<Pending> pending;
  for (int i = 0; i < 64; ++i) pending.push_back(largest(mesh.world(), number()));
  EXPECT_THROW(largest(mesh.world(), t), Error);
  pending.clear();
  largest(mesh.world(), t).wait(device.communication());
}

TEST_F(OverMpi, RecordsWhatThePlanRecords) {
  Counts counts, at;
  for (int r = 0; r < mpi.size(); ++r) counts.push_back(8 * r + 3);
  at = begins(counts, 0);
  std::vector<Record> real, planned;
  Device measuring(Device::Kind::measuring);
  const auto walk = [&](Mesh mesh, std::vector<Record>& records, Device& on) {
    mesh.wrap([&](Inner one) { return recording(std::move(one), records); });
    Communicator* const communicator = &mesh.world();
    const Tensor whole = on.allocate(Category::batch, DType::u16, {extent(counts, at)});
    const Tensor sums = on.allocate(Category::batch, DType::i64, {21});
    const Exchange gather[] = {{{}, whole, counts, at}, {{}, sums, {}, {}}};
    communicator->submit(on.communication(), {Collective::all_gather, {gather, 1}, 3, ""}).wait(on.communication());
    communicator->submit(on.communication(), {Collective::all_reduce_sum, {gather + 1, 1}, -1, ""})
        .wait(on.communication());
  };
  walk(whole(mpi, device), real, device);
  walk(planning_mesh(mpi.ranks()), planned, measuring);
  EXPECT_EQ(real, planned);
  ASSERT_EQ(real.size(), 2u);
  EXPECT_EQ(real[0].bytes, 2 * (extent(counts, at) - counts[static_cast<std::size_t>(mpi.rank())]));
  EXPECT_EQ(real[1].bytes, mpi.size() == 1 ? 0 : 21 * 8);
}

TEST_F(OverMpi, ThrottledTakesItsTimeOneAfterTheOther) {
  if (mpi.size() == 1) GTEST_SKIP() << "one rank receives nothing";
  using Clock = std::chrono::steady_clock;
  // 1 ms + 1 us a byte
  Mesh mesh = wrapped(whole(mpi, device), [](Inner one) { return test::throttled(std::move(one), 1000, 1e6); });
  Communicator* const communicator = &mesh.world();
  const Tensor t = device.allocate(Category::batch, DType::u64, {500});
  const std::vector<std::uint64_t> zeros(500);
  device.upload(device.communication(), t, zeros.data());
  const Exchange exchange = everywhere(t);
  const Operation sum{Collective::all_reduce_sum, {&exchange, 1}, 0, ""};
  const auto start = Clock::now();
  Pending first = communicator->submit(device.communication(), sum);
  Pending second = communicator->submit(device.communication(), sum);
  first.wait(device.communication());
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(5));
  second = Pending();
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(10));
  EXPECT_TRUE(communicator->name().starts_with("throttled("));
}

}  // namespace
}  // namespace tessera
