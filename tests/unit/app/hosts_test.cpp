#include "app/cli/hosts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include <fmt/format.h>

namespace tessera {
namespace {

using Strings = std::vector<std::string>;

TEST(Hosts, ThatAreAlikeDoNotDiffer) {
  const Equipment one{{"commit", "a"}, {"GPU", ""}};
  EXPECT_EQ(differences({"h1", "h1", "h2"}, {one, one, one}), Strings());
  EXPECT_EQ(differences({"h1"}, {own_equipment(-1)}), Strings());
  EXPECT_GE(own_equipment(-1).size(), 8U);
}

TEST(Hosts, AreNamedWithTheirRanks) {
  const Equipment a{{"commit", "a"}, {"oneDNN", "2"}}, b{{"commit", "b"}, {"oneDNN", "2"}}, c{{"commit", "a"}};
  EXPECT_EQ(differences({"h1", "h1", "h2", "h2"}, {a, a, b, b}),
            Strings{"hosts differ: h2 (ranks 2-3): commit b, others a"});
  EXPECT_EQ(differences({"h1", "h2", "h2", "h3"}, {b, a, a, a}),
            Strings{"hosts differ: h1 (rank 0): commit b, others a"});
  EXPECT_EQ(differences({"h1", "h2", "h3"}, {a, c, a}), Strings{"hosts differ: h2 (rank 1): oneDNN none, others 2"});
  EXPECT_EQ(
      differences({"h1", "h2", "h1", "h3"}, {a, b, a, c}),
      (Strings{"hosts differ: h2 (rank 1): commit b, others a", "hosts differ: h3 (rank 3): oneDNN none, others 2"}));
  EXPECT_EQ(places_text({"h1", "h2", "h1", "h1", "h2"}, {0, 1, 2, 3, 4}), "h1 (ranks 0, 2-3), h2 (ranks 1, 4)");
}

/// One rank of many that differs in one thing, whichever these are, is named alone.
TEST(Hosts, AnyOneThatDiffersIsFound) {
  std::mt19937 draws(5);
  const auto below = [&](std::size_t n) { return draws() % n; };
  for (int i = 0; i < 200; ++i) {
    const std::size_t ranks = 3 + below(20), things = 1 + below(6), odd = below(ranks), thing = below(things);
    Strings hosts;
    for (std::size_t r = 0; r < ranks; ++r) hosts.push_back(fmt::format("h{}", r));
    Equipment usual;
    for (std::size_t t = 0; t < things; ++t) usual.emplace_back(fmt::format("part{}", t), fmt::format("v{}", below(3)));
    std::vector<Equipment> all(ranks, usual);
    all[odd][thing].second = "other";
    EXPECT_EQ(differences(hosts, all), Strings{fmt::format("hosts differ: h{0} (rank {0}): part{1} other, others {2}",
                                                           odd, thing, usual[thing].second)});
  }
}

TEST(Hosts, HaveAsManyRanksEachIfTheyFollowEachOther) {
  EXPECT_EQ(ranks_of_each_host({"a"}), 1);
  EXPECT_EQ(ranks_of_each_host({"a", "a", "b", "b"}), 2);
  EXPECT_EQ(ranks_of_each_host({"a", "b", "c"}), 1);
  EXPECT_EQ(ranks_of_each_host({"a", "b", "a", "b"}), std::nullopt);
  EXPECT_EQ(ranks_of_each_host({"a", "a", "b"}), std::nullopt);
  EXPECT_EQ(ranks_of_each_host({"a", "b", "b"}), std::nullopt);
  EXPECT_EQ(ranks_of_each_host({"a", "a", "b", "c"}), std::nullopt);
  EXPECT_EQ(ranks_of_each_host({"a", "b", "b", "a"}), std::nullopt);
}

}  // namespace
}  // namespace tessera
