#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(DataSection, KeepsAShareOfTextForEvaluation) {
  RunConfig config = sound();
  EXPECT_DOUBLE_EQ(derived(config).data.eval_fraction.get(), 0.05);
  EXPECT_FALSE(derived(config).data.root.known());
  config.data.kind = DataKind::tokens;
  EXPECT_DOUBLE_EQ(derived(config).data.eval_fraction.get(), 0.0);
}

TEST(DataSection, IsEvaluatedOnAShareOrOnFilesOfTheirOwn) {
  RunConfig config = sound();
  config.data.eval_files = {"val.txt"};
  config.data.eval_fraction = 0.1;
  EXPECT_EQ(contradictions(config), List{"data.eval_fraction: keeps a share of 0.1 of the files for evaluation, and "
                                         "eval_files are for it: leave one of them out"});
  config.data.eval_fraction = 0;
  EXPECT_EQ(contradictions(config), List{});
}

TEST(DataSection, EvaluationSetsHaveNamesOfTheirOwn) {
  RunConfig config = sound();
  config.data.eval_sets = {{"code-2_b", {"code.txt"}}, {"prose", {"a.txt", "b.txt"}}};
  EXPECT_EQ(contradictions(config), List{});
  EXPECT_DOUBLE_EQ(derived(config).data.eval_fraction.get(), 0) << "sets are what is evaluated";
  config.data.eval_sets = {{"a/b", {"x"}}, {"held", {"x"}}, {"two", {"x"}}, {"two", {"y"}}, {"none", {}}};
  EXPECT_EQ(contradictions(config),
            (List{"data.eval_sets: name \"a/b\": it names columns of records: use letters, digits, - and _",
                  "data.eval_sets: name \"held\": that is the name of the set of eval_files or eval_fraction: give "
                  "another",
                  "data.eval_sets: name \"two\": two sets have it: give each its own",
                  "data.eval_sets: name \"none\": files is empty: name a pattern, or leave the set out"}));
}

TEST(DataSection, TokenizersAreForTokenFiles) {
  RunConfig config = sound();
  config.data.tokenizer = "/some/tokenizer.json";
  EXPECT_EQ(contradictions(config),
            List{"data.tokenizer: is of no use with data.kind text, whose bytes are tokens: make token files of the "
                 "text (examples/prepare_data) and use data.kind tokens"});
}

TEST(DataSection, AnswersAreMarkedBesideTokenFiles) {
  RunConfig config = sound();
  config.data.loss_mask = true;
  EXPECT_EQ(contradictions(config), List{"data.loss_mask: needs data.kind tokens: prepare.py --chat writes token "
                                         "files, and which tokens are answers"});
}

TEST(DataSection, AMixtureHasAWeightForEachPattern) {
  RunConfig config = sound();
  config.data.files = {"a.txt", "b.txt"};
  config.data.eval_fraction = 0;
  config.data.mixture = {0.5, 0.5};
  EXPECT_EQ(contradictions(config), List{});
  config.data.mixture = {3};
  EXPECT_EQ(contradictions(config),
            List{"data.mixture: is of length 1, and data.files of length 2: give each pattern its weight"});
  config.data.mixture = {3, 2e-6};
  EXPECT_EQ(contradictions(config), List{"data.mixture: 2e-06 is less than a millionth of the sum, 3.000002: give "
                                         "more, or leave that corpus out"});
  config.data.mixture = {3, 1};
  config.data.eval_fraction = 0.1;
  EXPECT_EQ(contradictions(config), List{"data.eval_fraction: keeps a share of 0.1 of one corpus for evaluation; a "
                                         "mixture is evaluated on data.eval_files"});
}

TEST(DataSection, ASeedOrdersShuffledData) {
  RunConfig config = sound();
  EXPECT_EQ(derived(config).data.seed.get(), config.run.seed);
  config.data.seed = std::uint64_t{7};
  EXPECT_EQ(derived(config).data.seed.get(), 7);
  EXPECT_EQ(advice(config), List{});
  config.data.shuffle = false;
  EXPECT_EQ(advice(config), List{"data.seed: has an effect only with shuffle true"});
}

}  // namespace
}  // namespace tessera
