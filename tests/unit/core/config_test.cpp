#include "core/config/config.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <limits>
#include <set>
#include <typeinfo>

#include "core/config/each_section.hpp"
#include "core/config/keys.hpp"
#include "core/config/restart.hpp"
#include "tests/support/drawn_keys.hpp"
#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(Derived, RefusesToBeReadTooEarly) {
  const Derived<std::int64_t> open;
  EXPECT_THROW(open.get(), Error);
  EXPECT_EQ(Derived<std::int64_t>(3) + 1, 4);
}

TEST(Check, AcceptsASoundConfig) { EXPECT_EQ(contradictions(sound()), List{}); }

TEST(Check, SurvivesAConfigOfZeros) { EXPECT_NO_THROW(contradictions(RunConfig())); }

TEST(Advise, IsInTheOrderOfTheDeck) {
  EXPECT_EQ(advice(sound()), List{});
  RunConfig config = sound();
  config.data.eval_fraction = 0.0;
  config.eval.every_steps = 10;
  config.optimizer.warmup_steps = 100;
  config.optimizer.decay_steps = 7;
  config.recompute.modules = std::vector{RecomputeModule::mlp};
  config.checkpoint.io = CheckpointIo::direct;
  config.checkpoint.mpio_hints = {{"cb_nodes", "2"}};
  EXPECT_EQ(advice(config), (List{"eval.every_steps: no evaluation: data.eval_fraction 0 keeps no windows for it, and "
                                  "there are no data.eval_files",
                                  "optimizer.warmup_steps: the run of 100 steps ends within warm-up",
                                  "recompute.modules: has an effect only with mode selective",
                                  "optimizer.decay_steps: has an effect only with schedule wsd",
                                  "checkpoint.mpio_hints: has an effect only with io mpio"}));
}

TEST(Keys, EveryKeyIsDescribedOnce) {
  std::set<std::string> paths;
  for (const KeyDoc& doc : key_docs()) {
    EXPECT_TRUE(paths.insert(doc.path).second) << doc.path;
    EXPECT_FALSE(doc.help.empty()) << doc.path;
    if (doc.kind == KeyDoc::Kind::key) {
      EXPECT_FALSE(doc.allowed.empty()) << doc.path;
      EXPECT_FALSE(doc.standard.empty()) << doc.path;
    }
  }
}

/// Converts to anything: as many as a struct can be made of are its members.
struct Anything {
  template <class T> operator T() const;
};
template <class S, class... Members> consteval std::size_t members_of(Members... members) {
  if constexpr (requires { S{members..., Anything()}; }) return members_of<S>(members..., Anything());
  else return sizeof...(members);
}

/// Counts the lines of a visit().
struct LineCount {
  std::size_t lines = 0;
  template <class... Of> void key(const Of&...) { ++lines; }
  template <class... Of> void required(const Of&...) { ++lines; }
  template <class... Of> void derived(const Of&...) { ++lines; }
  template <class... Of> void section(const Of&...) { ++lines; }
};

TEST(Keys, AreTheMembersOfTheirSections) {
  each_section(every_section(), []<class S>(const S& section) {
    LineCount count;
    S::visit(section, count);
    EXPECT_EQ(count.lines, members_of<S>()) << typeid(S).name() << " has a member without a line in visit()";
  });
}

TEST(Keys, HaveAMemberEach) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    RunConfig config;
    DrawnKeys drawn(seed);
    RunConfig::visit(config, drawn);
    EXPECT_EQ(drawn.unlike(values_of(config)), List{}) << "seed " << seed << ": two lines of a visit() name one member";
    for (const auto& [key, value] : drawn.given) EXPECT_TRUE(find_key(key)) << key << " is not explained";
  }
}

/// Keys of the findings of a run that has `now` after `saved`.
std::set<std::string> refused(const RunConfig& saved, const RunConfig& now, const std::set<std::string>& asked = {}) {
  std::set<std::string> keys;
  for (const Finding& finding : changes_at_restart(saved, now, asked)) keys.insert(finding.keys.front());
  return keys;
}

TEST(Keys, ChangeInAResumedRunAsTheirClassSays) {
  RunConfig saved;
  DrawnKeys drawn(1);
  RunConfig::visit(saved, drawn);
  for (const auto& [key, before] : drawn.given) {
    if (key == "schema_version") continue;  // has one value
    RunConfig now = saved;
    DrawnKeys other(2, key);
    RunConfig::visit(now, other);
    const Restart restart = find_key(key)->restart;
    const bool kept = restart == Restart::fixed || restart == Restart::on_request;
    const std::set<std::string> none, it{key};
    EXPECT_EQ(refused(saved, now), kept ? it : none);
    EXPECT_EQ(refused(saved, now, it), none);
    const std::vector<KeyChange> changes = changed_keys({saved, 1}, {now, 1});
    const bool sums = restart == Restart::told_of_sums && sum_order(saved, 1) != sum_order(now, 1);
    ASSERT_EQ(changes.size(), kept || restart == Restart::told || sums ? 1u : 0u) << key;
    if (changes.empty()) continue;
    EXPECT_EQ(changes.front().key, key);
    EXPECT_EQ(changes.front().before, before);
    EXPECT_EQ(changes.front().now, other.given.at(key));
  }
}

std::set<std::string> told(const Launched& before, const Launched& now) {
  std::set<std::string> keys;
  for (const KeyChange& change : changed_keys(before, now)) keys.insert(change.key);
  return keys;
}

TEST(Keys, OfSumsAreToldWhereTheirOrderChanges) {
  RunConfig rank;
  rank.batch = {12, 2};
  RunConfig batch = rank, full = rank;
  batch.reduce.order = ReduceOrder::batch;
  full.sharding = Sharding::full;
  using Keys = std::set<std::string>;
  EXPECT_EQ(told({rank, 1}, {batch, 1}), Keys{"reduce.order"});
  EXPECT_EQ(told({rank, 6}, {batch, 6}), Keys{}) << "a micro-batch a rank";
  EXPECT_EQ(told({rank, 2}, {rank, 2}), Keys{});
  EXPECT_EQ(told({rank, 2}, {rank, 3}), Keys{"ranks"});
  EXPECT_EQ(told({rank, 3}, {rank, 6}), Keys{"ranks"});
  EXPECT_EQ(told({batch, 2}, {batch, 3}), Keys{});
  EXPECT_EQ(told({rank, 2}, {batch, 3}), Keys{"reduce.order"});
  EXPECT_EQ(told({batch, 2}, {rank, 3}), (Keys{"reduce.order", "ranks"}));
  EXPECT_EQ(told({rank, 2}, {full, 2}), Keys{"sharding"});
  EXPECT_EQ(told({rank, 6}, {full, 6}), Keys{});
  EXPECT_EQ(told({full, 2}, {full, 3}), Keys{}) << "each micro-batch is reduced by itself";
  full.reduce.order = ReduceOrder::batch;
  EXPECT_EQ(told({batch, 2}, {full, 3}), Keys{});
}

TEST(Keys, OfShardingGroupsAreToldWhereTheOrderOfSumsChanges) {
  using Keys = std::set<std::string>;
  const Keys group{"parallel.sharding_group"};
  RunConfig all;
  all.batch = {16, 2};
  all.sharding = Sharding::full;
  RunConfig alone = all, pairs = all;
  alone.parallel.sharding_group = 1;
  pairs.parallel.sharding_group = 2;
  EXPECT_EQ(told({all, 4}, {alone, 4}), group) << "a rank adds up its own micro-batches";
  EXPECT_EQ(told({alone, 4}, {pairs, 4}), group);
  EXPECT_EQ(told({all, 4}, {pairs, 4}), Keys{});
  EXPECT_EQ(told({all, 8}, {alone, 8}), Keys{}) << "a micro-batch a rank";
  EXPECT_EQ(told({alone, 2}, {alone, 4}), Keys{"ranks"});
  all.parallel.expert = pairs.parallel.expert = 2;
  EXPECT_EQ(told({all, 4}, {pairs, 4}), group) << "experts lie whole on each rank of a pair";
  all.reduce.order = pairs.reduce.order = ReduceOrder::batch;
  EXPECT_EQ(told({all, 4}, {pairs, 4}), Keys{});
}

TEST(Keys, OfSectionsThatComeOrGoAreChanged) {
  RunConfig mixture = with_experts(4, 2);
  for (const auto& [before, now] : {std::pair{sound(), mixture}, {mixture, sound()}}) {
    EXPECT_TRUE(refused(derived(before), derived(now)).contains("model.moe.experts"));
    for (const KeyChange& change : changed_keys({derived(before), 1}, {derived(now), 1}))
      EXPECT_EQ(before.model.moe ? change.now : change.before, "absent") << change.key;
  }
}

// Tensors, or state, would not fit, or a resumed run would have other bits from there on.
TEST(Keys, OfTensorsAreFixed) {
  const std::set<std::string> free{"model.moe.weights", "model.moe.bias_rate", "model.moe.balance_coef",
                                   "model.moe.z_coef", "model.moe.capacity"};
  for (const KeyDoc& doc : key_docs())
    if (doc.kind == KeyDoc::Kind::key && (doc.path.starts_with("model.") || doc.path.starts_with("optimizer.muon."))) {
      EXPECT_EQ(doc.restart == Restart::fixed, !free.contains(doc.path)) << doc.path;
    }
  for (const char* key : {"run.seed", "precision.compute", "optimizer.matrices", "optimizer.beta1", "optimizer.beta2",
                          "optimizer.eps", "optimizer.moments"})
    EXPECT_EQ(find_key(key)->restart, Restart::fixed) << key;
}

TEST(Keys, DescribeTypeDefaultAndRule) {
  const KeyDoc* const steps = find_key("run.steps");
  ASSERT_TRUE(steps);
  EXPECT_EQ(steps->type, "an integer");
  EXPECT_EQ(steps->standard, "none (required)");
  EXPECT_EQ(steps->allowed, "0 to 1000000000000");
  EXPECT_EQ(steps->restart, Restart::on_request);
  const KeyDoc* const schedule = find_key("optimizer.schedule");
  ASSERT_TRUE(schedule);
  EXPECT_EQ(schedule->standard, "cosine");
  EXPECT_EQ(schedule->allowed, "cosine | linear | constant | wsd");
  const KeyDoc* const kv_heads = find_key("model.kv_heads");
  ASSERT_TRUE(kv_heads);
  EXPECT_EQ(kv_heads->standard, "derived: heads");
  EXPECT_EQ(find_key("model.moe")->kind, KeyDoc::Kind::section);
  EXPECT_EQ(find_key("model.nothing"), nullptr);
}

TEST(Keys, SuggestWhatWasMeant) {
  EXPECT_EQ(nearest_key("model.head"), "model.heads");
  EXPECT_EQ(nearest_key("modle"), "model");
  EXPECT_EQ(nearest_key("heads"), "model.heads");
  EXPECT_EQ(nearest_key("model.hidden_size"), "model.hidden");
  EXPECT_EQ(nearest_key("optimizr.lr"), "optimizer.lr");
  EXPECT_EQ(nearest_key("model.experts"), "model.moe.experts");
  EXPECT_EQ(nearest_key("pipelines"), "");
  EXPECT_EQ(nearest_key(std::string(100000, 'x')), "");
  EXPECT_EQ(nearest_word("cosin", choices_of<RateSchedule>()), "cosine");
  EXPECT_EQ(nearest_word("cubic", choices_of<RateSchedule>()), "");
}

TEST(Value, WritesWhatReadsBackToTheSameBits) {
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
  for (const double value : {0.1, 3e-4, 1e-8, 25.0, 1.0 / 3.0, 5e-324, 1.7976931348623157e308, -0.0})
    EXPECT_EQ(bits(std::strtod(deck_text(value).c_str(), nullptr)), bits(value)) << value;
  EXPECT_EQ(deck_text(3e-4), "3e-04");
  EXPECT_EQ(deck_text(25.0), "25");
  EXPECT_EQ(deck_text(true), "true");
  EXPECT_EQ(deck_text(Compute::bf16), "bf16");
  EXPECT_EQ(deck_text(std::uint64_t{18446744073709551615u}), "18446744073709551615");
  EXPECT_EQ(deck_text(std::string("a\"b\\c\n\t\x01")), "\"a\\\"b\\\\c\\n\\t\\x01\"");
  EXPECT_EQ(deck_text(std::vector<std::string>{"a", "b"}), "[\"a\", \"b\"]");
}

TEST(Value, ShowsRangesAsTheDeckWould) {
  EXPECT_EQ(from_to(1, 8).text(), "1 to 8");
  EXPECT_EQ(from_to(1, 1).text(), "1");
  EXPECT_EQ(at_least(0).text(), ">= 0");
  EXPECT_EQ(from_below(0, 1).text(), "[0, 1)");
  EXPECT_EQ(above_to(0, 0.5).text(), "(0, 0.5]");
}

TEST(Value, RangesHoldTheirEndsAndNoNan) {
  EXPECT_TRUE(from_to(0, 1).contains(0));
  EXPECT_TRUE(from_to(0, 1).contains(1));
  EXPECT_FALSE(from_below(0, 1).contains(1));
  EXPECT_FALSE(above_to(0, 1).contains(0));
  EXPECT_FALSE(at_least(0).contains(std::numeric_limits<double>::quiet_NaN()));
}

TEST(Choices, NamesReadBack) {
  EXPECT_EQ(choice_named<Norm>(name_of(Norm::rms)), Norm::rms);
  EXPECT_EQ(choice_named<RateSchedule>("wsd"), RateSchedule::wsd);
  EXPECT_EQ(choice_named<RateSchedule>("WSD"), std::nullopt);
}

}  // namespace
}  // namespace tessera
