#include "core/data/mixture.hpp"
#include "core/data/sampler.hpp"
#include "tests/support/shown.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <set>

namespace tessera {
namespace {

TEST(TokenStream, JoinsPiecesOfAnyWidth) {
  const std::array<std::uint8_t, 3> bytes{1, 2, 255};
  const std::array<std::uint16_t, 2> shorts{300, 65535};
  const std::array<std::uint32_t, 2> words{70000, 7};
  TokenStream stream;
  EXPECT_EQ(stream.count(), 0);
  stream.append(std::span(bytes));
  stream.append(std::span<const std::uint16_t>());
  stream.append(std::span(shorts));
  stream.append(std::span(words));
  const std::vector<std::int32_t> all{1, 2, 255, 300, 65535, 70000, 7};
  ASSERT_EQ(stream.count(), 7);
  for (std::int64_t first = 0; first <= 7; ++first)
    for (std::int64_t n = 0; first + n <= 7; ++n) {
      std::vector<std::int32_t> out(static_cast<std::size_t>(n), -1);
      stream.read(first, out);
      EXPECT_TRUE(std::equal(out.begin(), out.end(), all.begin() + first));
    }
  std::vector<std::int32_t> two(2);
  EXPECT_THROW(stream.read(6, two), Error);
  EXPECT_THROW(stream.read(-1, two), Error);
}

Windows split(std::int64_t tokens, std::int64_t length, double fraction) {
  Problems problems;
  const Windows windows = Windows::split(tokens, length, fraction, problems);
  problems.raise();
  return windows;
}

TEST(Windows, NeedOneTokenMoreThanTheyCover) {
  EXPECT_EQ(split(11, 5, 0).train, 2);
  EXPECT_EQ(split(10, 5, 0).train, 1);
  EXPECT_EQ(split(6, 5, 0).train, 1);
  EXPECT_EQ(split(6, 5, 0).evaluation, 0);
}

TEST(Windows, KeepTheLastOnesForEvaluation) {
  const Windows w = split(1001, 10, 0.05);
  EXPECT_EQ(w.train, 95);
  EXPECT_EQ(w.evaluation, 5);
  EXPECT_EQ(split(1001, 10, 0.059).evaluation, 5) << "rounded down";
  EXPECT_EQ(split(1001, 10, 1e-9).evaluation, 1) << "at least one when any is asked for";
}

TEST(Windows, RefuseATextThatIsTooShort) {
  for (const std::int64_t tokens : {0, 5, 9}) {
    SCOPED_TRACE(test::shown(tokens));
    Problems problems;
    Windows::apart(tokens, 4, 0.1, 1, problems);
    ASSERT_EQ(problems.list().size(), 1u);
    EXPECT_NE(problems.list()[0].text.find("needs at least 10"), std::string::npos);
  }
  Problems enough;
  EXPECT_EQ(Windows::apart(10, 4, 0.1, 1, enough).train, 1);
  EXPECT_TRUE(enough.empty());
  for (const auto& [tokens, length, fraction] :
       {std::tuple{0, 4, 0.0}, {1, 4, 0.0}, {4, 4, 0.0}, {5, 4, 0.1}, {8, 4, 0.1}, {100, 1000, 0.0}}) {
    Problems problems;
    Windows::split(tokens, length, fraction, problems);
    ASSERT_EQ(problems.list().size(), 1u) << tokens << " tokens, length " << length;
    EXPECT_EQ(problems.list()[0].code, Exit::file);
    EXPECT_NE(problems.list()[0].text.find("model.seq_len"), std::string::npos);
  }
  Problems none;
  EXPECT_EQ(Windows::split(9, 4, 0.1, none).train, 1) << "the number that the message asks for is enough";
  EXPECT_TRUE(none.empty());
}

/// The tokens that a window reads, as inputs or targets.
std::set<std::int64_t> tokens_of(const Windows& windows, std::int64_t window) {
  std::set<std::int64_t> tokens;
  const std::int64_t first = windows.first_token(window);
  for (std::int64_t i = 0; i <= windows.targets(window); ++i) tokens.insert(first + i);
  return tokens;
}

/// Sizes of a corpus, a window and an evaluation, as draws make them.
class DrawnCuts : public testing::TestWithParam<std::uint32_t> {
 protected:
  DrawnCuts() {
    std::mt19937 draws(GetParam());
    const auto number = [&](std::int64_t from, std::int64_t to) {
      return std::uniform_int_distribution<std::int64_t>(from, to)(draws);
    };
    length_ = number(1, 40);
    tokens_ = number(2 * (length_ + 1), 3000);
    fraction_ = static_cast<double>(number(1, 60)) / 100;
    seed_ = static_cast<std::uint64_t>(number(0, 1 << 30));
  }
  Windows cut(double fraction, std::uint64_t seed) const {
    Problems problems;
    Windows windows = Windows::apart(tokens_, length_, fraction, seed, problems);
    problems.raise();
    return windows;
  }
  std::int64_t length_, tokens_;
  double fraction_;
  std::uint64_t seed_;
};

TEST_P(DrawnCuts, ShareNoTokenBetweenTrainingAndEvaluation) {
  const Windows windows = cut(fraction_, seed_);
  ASSERT_GT(windows.train, 0);
  ASSERT_GT(windows.evaluation, 0);
  EXPECT_EQ(windows.count(), tokens_ / (length_ + 1));
  EXPECT_EQ(windows.evaluation,
            std::max<std::int64_t>(1, static_cast<std::int64_t>(fraction_ * static_cast<double>(windows.count()))));
  std::set<std::int64_t> trained, evaluated;
  for (std::int64_t w = 0; w < windows.count(); ++w)
    for (const std::int64_t token : tokens_of(windows, w)) {
      ASSERT_TRUE(0 <= token && token < tokens_);
      ASSERT_TRUE((w < windows.train ? trained : evaluated).insert(token).second) << "two windows share " << token;
      ASSERT_FALSE((w < windows.train ? evaluated : trained).contains(token)) << token;
    }
  // Windows for training keep their order, which a run without shuffling shows.
  for (std::int64_t w = 1; w < windows.train; ++w) EXPECT_LT(windows.first_token(w - 1), windows.first_token(w));
}

TEST_P(DrawnCuts, DependOnTheSeedAlone) {
  const Windows one = cut(fraction_, seed_), same = cut(fraction_, seed_), other = cut(fraction_, seed_ + 1);
  bool differs = false;
  for (std::int64_t w = 0; w < one.count(); ++w) {
    EXPECT_EQ(one.first_token(w), same.first_token(w));
    differs = differs || one.first_token(w) != other.first_token(w);
  }
  if (one.count() > 20 && one.evaluation > 1) {
    EXPECT_TRUE(differs);
  }
  // Of a smaller share the first are the same, so that an evaluation of few windows is a part of one of many.
  const Windows less = cut(fraction_ / 2, seed_);
  for (std::int64_t i = 0; i < less.evaluation; ++i)
    EXPECT_EQ(less.first_token(less.train + i), one.first_token(one.train + i));
}

INSTANTIATE_TEST_SUITE_P(Sizes, DrawnCuts, testing::Range(0u, 200u));

// Every window is drawn as often as any other, whichever its place; and as the first one too.
TEST(DrawnPlaces, AreEquallyLikely) {
  constexpr std::int64_t all = 50, count = 10, seeds = 4000;
  std::vector<int> drawn(all), first(all);
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const DrawnPlaces places(count, all, seed);
    ++first[static_cast<std::size_t>(places.drawn(0))];
    for (std::int64_t i = 0; i < count; ++i) ++drawn[static_cast<std::size_t>(places.drawn(i))];
  }
  for (std::size_t place = 0; place < all; ++place) {  // means 800 and 80, deviations 25 and 9
    EXPECT_NEAR(drawn[place], 800, 150) << place;
    EXPECT_NEAR(first[place], 80, 50) << place;
  }
}

TEST(Windows, HeldOnesAreAllTakenInADrawnOrder) {
  Problems problems;
  const Windows windows = Windows::held(1001, 10, 7, problems);
  ASSERT_EQ(windows.evaluation, 100);
  std::vector<std::int64_t> begins;
  for (std::int64_t w = 0; w < 100; ++w) begins.push_back(windows.first_token(w));
  EXPECT_FALSE(std::ranges::is_sorted(begins));
  std::ranges::sort(begins);
  for (std::int64_t w = 0; w < 100; ++w) EXPECT_EQ(begins[static_cast<std::size_t>(w)], 10 * w);
}

// Of a whole text every token but the first is a target once, after all tokens before it in its window.
TEST(Windows, OfAWholeTextPredictEveryTokenButTheFirst) {
  std::vector<std::uint16_t> text(300);
  std::iota(text.begin(), text.end(), std::uint16_t{1});
  for (std::int64_t tokens = 2; tokens <= 300; tokens += 1 + tokens / 7)
    for (const std::int64_t length : {1, 2, 7, 64, 299, 1000}) {
      TokenStream stream;
      stream.append(std::span<const std::uint16_t>(text).first(static_cast<std::size_t>(tokens)));
      const Windows windows = Windows::whole(tokens, length);
      EXPECT_EQ(windows.evaluation_targets(windows.evaluation), tokens - 1);
      std::vector<std::int32_t> ids(static_cast<std::size_t>(length)), targets(ids.size());
      std::int32_t next = 1;
      for (std::int64_t w = 0; w < windows.count(); ++w) {
        read_window(stream, windows, w, ids, targets);
        const std::int64_t real = windows.targets(w);
        ASSERT_GT(real, 0);
        for (std::int64_t i = 0; i < length; ++i) {
          const auto at = static_cast<std::size_t>(i);
          ASSERT_EQ(ids[at], i < real ? next : 0) << tokens << " tokens, length " << length;
          ASSERT_EQ(targets[at], i < real ? next + 1 : 0);
          next += i < real ? 1 : 0;
        }
      }
      ASSERT_EQ(next, tokens);
    }
}

TEST(Windows, MayAllBeForEvaluation) {
  Problems problems;
  const Windows held = Windows::held(13, 4, problems);
  EXPECT_TRUE(held.train == 0 && held.evaluation == 3 && held.length == 4 && problems.empty());
  EXPECT_EQ(Windows::held(4, 4, problems).evaluation, 0);
  ASSERT_EQ(problems.list().size(), 1u);
  EXPECT_NE(problems.list()[0].text.find("needs at least 5"), std::string::npos);
}

TEST(ReadWindow, ShiftsTargetsByOneToken) {
  std::vector<std::uint8_t> text(21);
  std::iota(text.begin(), text.end(), std::uint8_t{0});
  TokenStream stream;
  stream.append(std::span<const std::uint8_t>(text).first(7));
  stream.append(std::span<const std::uint8_t>(text).subspan(7));
  const Windows windows = split(21, 5, 0);
  for (std::int64_t w = 0; w < 4; ++w) {
    std::vector<std::int32_t> ids(5), targets(5);
    read_window(stream, windows, w, ids, targets);
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(ids[i], w * 5 + static_cast<std::int32_t>(i));
      EXPECT_EQ(targets[i], ids[i] + 1);
    }
  }
  std::vector<std::int32_t> ids(5), targets(5), four(4);
  EXPECT_THROW(read_window(stream, windows, 4, ids, targets), Error);
  EXPECT_THROW(read_window(stream, windows, 0, ids, four), Error);
}

TEST(Sampler, VisitsEveryWindowOnceAnEpoch) {
  for (std::int64_t n : {1, 2, 3, 17, 1000}) {
    SCOPED_TRACE(test::shown(n));
    Sampler sampler(n, Order::shuffled, 42);
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      std::set<std::int64_t> seen;
      for (std::int64_t i = 0; i < n; ++i) seen.insert(sampler.window(epoch * n + i));
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), n);
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), n - 1);
    }
  }
}

TEST(Sampler, IsAFunctionOfTheSampleAlone) {
  Sampler forward(50, Order::shuffled, 7), jumping(50, Order::shuffled, 7);
  for (std::int64_t i = 0; i < 500; ++i) {
    const std::int64_t s = i * 373 % 500;
    EXPECT_EQ(forward.window(i), shuffled_epoch(50, 7, i / 50)[static_cast<std::size_t>(i % 50)]) << i;
    EXPECT_EQ(jumping.window(s), shuffled_epoch(50, 7, s / 50)[static_cast<std::size_t>(s % 50)]) << s;
  }
}

TEST(Sampler, ShufflesDifferentlyBySeedAndEpoch) {
  const auto a = shuffled_epoch(100, 1, 0), b = shuffled_epoch(100, 1, 1), c = shuffled_epoch(100, 2, 0);
  EXPECT_NE(a, b);
  EXPECT_NE(a, c);
  EXPECT_EQ(a, shuffled_epoch(100, 1, 0));
}

// Each window should come first about equally often: chi-square with 9 degrees of freedom, the 1e-4 quantile is 33.7.
TEST(Sampler, FavoursNoWindow) {
  std::array<double, 10> first{};
  constexpr int epochs = 5000;
  for (int e = 0; e < epochs; ++e) ++first[static_cast<std::size_t>(shuffled_epoch(10, 3, e)[0])];
  double chi_square = 0;
  for (double count : first) chi_square += (count - epochs / 10.0) * (count - epochs / 10.0) / (epochs / 10.0);
  EXPECT_LT(chi_square, 33.7);
}

TEST(Sampler, InSequenceGoesRound) {
  Sampler sampler(7, Order::sequential, 1);
  for (std::int64_t s = 0; s < 30; ++s) EXPECT_EQ(sampler.window(s), s % 7);
}

TEST(Sampler, RefusesAnEmptyCorpusAndNegativeSamples) {
  EXPECT_THROW(Sampler(0, Order::shuffled, 1), Error);
  EXPECT_THROW(Sampler(5, Order::shuffled, 1).window(-1), Error);
}

// Reference: seats by Sainte-Lague's rule, dealt one by one.
std::vector<Mixture::Draw> dealt(const std::vector<double>& weights, std::int64_t samples) {
  std::vector<std::int64_t> taken(weights.size());
  std::vector<Mixture::Draw> places;
  for (std::int64_t s = 0; s < samples; ++s) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < weights.size(); ++i)
      if (weights[i] / static_cast<double>(2 * taken[i] + 1) > weights[best] / static_cast<double>(2 * taken[best] + 1))
        best = i;
    places.push_back({best, taken[best]++});
  }
  return places;
}

TEST(Mixture, DealsSamplesBySainteLague) {
  // Weights whose sums are powers of two, so that no share is rounded.
  for (const std::vector<double>& weights :
       {std::vector{1.0}, {2.0}, {1.0, 1.0}, {3.0, 1.0}, {1.0, 7.0}, {0.5, 0.25, 0.25}, {1.0, 20.0, 3.0, 8.0, 32.0}}) {
    const auto expected = dealt(weights, 500);
    Mixture mixture(weights);
    for (std::int64_t s = 0; s < 500; ++s) {
      const std::int64_t at = s * 373 % 500;
      EXPECT_EQ(mixture.place(at), expected[static_cast<std::size_t>(at)]) << weights.size() << " weights, " << at;
    }
  }
}

TEST(Mixture, GivesEachCorpusItsShareOfEveryStretch) {
  const std::vector<double> weights{0.7, 0.2, 0.0999, 0.0001};
  Mixture mixture(weights);
  for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{1} << 20, std::int64_t{1} << 50}) {
    std::vector<std::int64_t> first(4, -1), taken(4);
    for (std::int64_t n = 1; n <= 30000; ++n) {
      const Mixture::Draw place = mixture.place(begin + n - 1);
      std::int64_t& start = first[place.corpus];
      if (start < 0) start = place.sample;
      EXPECT_EQ(place.sample, start + taken[place.corpus]++) << "none is left out, none comes twice";
      for (std::size_t i = 0; i < 4; ++i)  // within (1 + corpora) / 2 at either end
        ASSERT_NEAR(static_cast<double>(taken[i]), weights[i] * static_cast<double>(n), 5.1) << begin << " " << n;
    }
  }
}

TEST(Mixture, RefusesWhatIsNoWeight) {
  EXPECT_THROW(Mixture({}), Error);
  EXPECT_THROW(Mixture(std::vector{1.0, 0.0}), Error);
  EXPECT_THROW(Mixture(std::vector{1.0}).place(-1), Error);
}

TEST(Sampler, ShufflesEachCorpusByItself) {
  EXPECT_EQ(shuffled_epoch(50, 7, 2, 0), shuffled_epoch(50, 7, 2));
  EXPECT_NE(shuffled_epoch(50, 7, 2, 1), shuffled_epoch(50, 7, 2));
  EXPECT_NE(shuffled_epoch(50, 7, 2, 1), shuffled_epoch(50, 7, 2, 2));
  EXPECT_EQ(Sampler(50, Order::shuffled, 7, 1).window(120), shuffled_epoch(50, 7, 2, 1)[20]);
}

// Round after round, rank after rank, the micro-batches are those of one rank alone; then come the idle ranks.
TEST(BatchPlan, DealsTheSameMicroBatchesWhateverTheRanks) {
  for (std::int64_t micro : {1, 3, 4, 24})
    for (std::int64_t ranks = 1; ranks <= 24 / micro; ++ranks) {
      const BatchPlan plan(24, micro, ranks);
      EXPECT_EQ(plan.micro_batches(), 24 / micro);
      std::int64_t idle = 0;
      for (std::int64_t m = 0; m < plan.rounds() * ranks; ++m) {
        const SampleRange piece = plan.micro_batch(m / ranks, m % ranks);
        if (m < plan.micro_batches()) {
          EXPECT_EQ(piece, (SampleRange{m * micro, micro})) << ranks << " ranks";
        } else {
          EXPECT_EQ(piece.count, 0);
          ++idle;
        }
      }
      EXPECT_EQ(plan.idle_ranks(), idle);
      EXPECT_LT(idle, ranks);
    }
}

TEST(BatchPlan, RefusesWhatItCannotDeal) {
  EXPECT_THROW(BatchPlan(24, 5, 1), Error);
  EXPECT_THROW(BatchPlan(24, 0, 1), Error);
  EXPECT_THROW(BatchPlan(24, 1, 0), Error);
  EXPECT_THROW(BatchPlan(24, 4, 7), Error) << "fewer micro-batches than ranks";
  EXPECT_THROW(BatchPlan(0, 1, 1), Error);
  EXPECT_THROW(BatchPlan(24, 1, 3).micro_batch(0, 3), Error);
  EXPECT_THROW(BatchPlan(24, 1, 3).micro_batch(8, 0), Error);
}

// The contents of a micro-batch, and the order of sums, do not depend on the number of ranks.
TEST(EvaluationPlan, DealsTheSamePiecesWhateverTheRanks) {
  for (std::int64_t held : {1, 3, 40, 1000})
    for (std::int64_t micro : {1, 3, 8}) {
      const Windows windows{16, 100, held};
      std::vector<SampleRange> expected;
      for (std::int64_t w = 0; w < std::min<std::int64_t>(held, 48); w += micro)
        expected.push_back({100 + w, std::min(micro, std::min<std::int64_t>(held, 48) - w)});
      for (std::int64_t ranks : {1, 2, 3, 4, 8}) {
        const EvaluationPlan plan(windows, 48, micro, ranks);
        EXPECT_EQ(plan.windows(), std::min<std::int64_t>(held, 48));
        std::vector<SampleRange> pieces;
        std::int64_t idle = 0;
        for (std::int64_t pass = 0; pass < plan.passes(); ++pass)
          for (std::int64_t rank = 0; rank < ranks; ++rank) {
            const SampleRange piece = plan.piece(pass, rank);
            if (piece.count > 0) pieces.push_back(piece);
            idle += piece.count == 0 ? 1 : 0;
            EXPECT_TRUE(piece.count > 0 || pass == plan.passes() - 1) << "only the last pass may be short of pieces";
          }
        EXPECT_EQ(pieces, expected) << held << " windows, " << ranks << " ranks";
        EXPECT_LT(idle, ranks);
      }
    }
}

TEST(EvaluationPlan, MakesNoPassWithoutWindows) {
  const EvaluationPlan plan({16, 10, 0}, 48, 2, 3);
  EXPECT_EQ(plan.passes(), 0);
  EXPECT_EQ(plan.windows(), 0);
  EXPECT_THROW(plan.piece(0, 0), Error);
  EXPECT_THROW(EvaluationPlan({16, 10, 5}, 48, 0, 3), Error);
}

}  // namespace
}  // namespace tessera
