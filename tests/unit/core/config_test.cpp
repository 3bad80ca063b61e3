#include "core/config/batch_advice.hpp"
#include "core/config/config.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <limits>
#include <set>

#include "core/config/effects.hpp"
#include "core/config/keys.hpp"
#include "core/config/value.hpp"
#include "core/config/values.hpp"

namespace tessera {
namespace {

RunConfig sound() {
  RunConfig config;
  config.run.steps = 100;
  config.model.layers = 2;
  config.model.hidden = 96;
  config.model.heads = 6;
  config.model.seq_len = 32;
  config.data.files = {"*.txt"};
  config.batch.global = 8;
  config.batch.micro = 2;
  return config;
}

std::vector<std::string> texts(const std::vector<Finding>& findings) {
  std::vector<std::string> list;
  for (const Finding& finding : findings) list.push_back(finding.keys.front() + ": " + finding.text);
  return list;
}
std::vector<std::string> contradictions(RunConfig config) {
  derive(config);
  return texts(check(config));
}
/// Advice on a deck that gives every key whose value is no default.
std::vector<std::string> advice(RunConfig config) {
  std::set<std::string> given;
  RunConfig standard;
  if (config.model.moe) standard.model.moe = MoeConfig{};
  for (const auto& [key, value] : values_of(config))
    if (const auto defaults = values_of(standard); !defaults.contains(key) || defaults.at(key) != value)
      given.insert(key);
  derive(config);
  std::vector<std::string> list = texts(advise(config));
  for (std::string& text : texts(without_effect(config, given))) list.push_back(std::move(text));
  return list;
}
using List = std::vector<std::string>;

TEST(Derive, FillsWhatFollows) {
  RunConfig config = sound();
  config.run.name = "small";
  derive(config);
  EXPECT_EQ(config.model.kv_heads.get(), 6);
  EXPECT_EQ(config.model.head_dim.get(), 16);
  EXPECT_EQ(config.model.ffn.get(), 384);
  EXPECT_TRUE(config.model.bias.get());
  EXPECT_EQ(config.model.vocab.get(), 256);
  EXPECT_DOUBLE_EQ(config.data.eval_fraction.get(), 0.05);
  EXPECT_TRUE(config.recompute.modules.get().empty());
  EXPECT_EQ(config.checkpoint.dir.get(), "runs/small");
  EXPECT_FALSE(config.run.threads.known());
  EXPECT_FALSE(config.data.root.known());
}

TEST(Advise, MuonsKeysCountWithMuonAlone) {
  RunConfig config = sound();
  EXPECT_EQ(advice(config), List{});
  config.optimizer.muon.momentum = 0.9;
  config.optimizer.muon.scale = MuonScale::rms;
  EXPECT_EQ(advice(config), (List{"optimizer.muon.momentum: has an effect only with matrices: muon",
                                  "optimizer.muon.scale: has an effect only with matrices: muon"}));
  config.optimizer.matrices = MatrixRule::muon;
  EXPECT_EQ(advice(config), List{});
}

TEST(Derive, FollowsTheOtherKeys) {
  RunConfig config = sound();
  config.model.activation = Activation::swiglu;
  config.model.norm = Norm::rms;
  config.model.moe = MoeConfig{};
  config.model.moe->top_k = 1;
  config.data.kind = DataKind::tokens;
  config.recompute.mode = RecomputeMode::selective;
  derive(config);
  EXPECT_EQ(config.model.ffn.get(), 256);  // 8 * 96 / 3
  EXPECT_FALSE(config.model.bias.get());
  EXPECT_FALSE(config.model.vocab.known());
  EXPECT_FALSE(config.model.moe->renormalize.get());
  EXPECT_DOUBLE_EQ(config.data.eval_fraction.get(), 0.0);
  EXPECT_EQ(config.recompute.modules.get(), std::vector{RecomputeModule::attention});
}

TEST(Derive, RoundsTheGatedWidthUp) {
  for (const auto& [hidden, ffn] : {std::pair{48, 128}, {49, 256}, {256, 768}, {768, 2048}, {1000, 2688}}) {
    RunConfig config = sound();
    config.model.hidden = hidden;
    config.model.activation = Activation::swiglu;
    derive(config);
    EXPECT_EQ(config.model.ffn.get(), ffn) << hidden;
  }
}

TEST(Derive, LeavesAloneWhatWasGiven) {
  RunConfig config = sound();
  config.model.kv_heads = 2;
  config.model.head_dim = 8;
  config.model.bias = false;
  config.checkpoint.dir = "elsewhere";
  const RunConfig given = config;
  derive(config);
  EXPECT_EQ(config.model.kv_heads, given.model.kv_heads);
  EXPECT_EQ(config.model.head_dim, given.model.head_dim);
  EXPECT_EQ(config.model.bias, given.model.bias);
  EXPECT_EQ(config.checkpoint.dir, given.checkpoint.dir);
}

TEST(Derived, RefusesToBeReadTooEarly) {
  const Derived<std::int64_t> open;
  EXPECT_THROW(open.get(), Error);
  EXPECT_EQ(Derived<std::int64_t>(3) + 1, 4);
}

TEST(Check, AcceptsASoundConfig) { EXPECT_EQ(contradictions(sound()), List{}); }

TEST(Check, NamesEveryContradiction) {
  RunConfig config = sound();
  config.model.heads = 5;
  EXPECT_EQ(contradictions(config),
            List{"model.heads: 5 heads do not divide hidden 96: change one of them, or give model.head_dim"});
  config.model.head_dim = 16;
  EXPECT_EQ(contradictions(config), List{});

  config = sound();
  config.model.position = Position::rotary;
  config.model.head_dim = 15;
  EXPECT_EQ(contradictions(config), List{"model.head_dim: 15 is odd, and position rotary turns pairs"});

  config = sound();
  config.model.kv_heads = 4;
  EXPECT_EQ(contradictions(config), List{"model.kv_heads: 4 does not divide heads 6"});

  config = sound();
  config.model.moe = MoeConfig{};
  config.model.moe->experts = 4;
  config.model.moe->top_k = 5;
  EXPECT_EQ(contradictions(config), List{"model.moe.top_k: 5 of 4 experts: at most all of them"});

  config = sound();
  config.model.vocab = 255;
  EXPECT_EQ(contradictions(config), List{"model.vocab: 255 entries cannot hold the 256 bytes of data.kind text"});

  config = sound();
  config.optimizer.min_lr = 0.5;
  EXPECT_EQ(contradictions(config), List{"optimizer.min_lr: 0.5 is above lr 0.0003"});

  config = sound();
  config.batch.micro = 3;
  EXPECT_EQ(contradictions(config), List{"batch.global: 8 is no multiple of micro 3: use batch.micro 1, 2, 4 or 8, or "
                                         "batch.global 6 or 9"});

  config = sound();
  config.model.hidden = 1 << 20;
  config.model.head_dim = 1;
  config.model.layers = 10000;
  EXPECT_EQ(contradictions(config), List{"model.hidden: 1e+17 parameters are more than 1e+15, which no machine holds"});

  config = sound();
  config.model.seq_len = 1 << 24;
  config.batch = {1 << 24, 1 << 24};
  EXPECT_EQ(contradictions(config),
            List{"batch.micro: 1e+18 numbers in a micro-batch are more than 1e+15, which no machine holds"});

  config = sound();
  config.recompute = {RecomputeMode::selective, std::vector<RecomputeModule>{}};
  EXPECT_EQ(contradictions(config), List{"recompute.modules: mode selective needs at least one module"});

  config = sound();
  config.sample = {10, ""};
  EXPECT_EQ(contradictions(config), List{"sample.prompt: is empty: generation starts from at least one byte"});

  config = sound();
  config.debug.trace = config.debug.profile = "one.json";
  EXPECT_EQ(contradictions(config), List{"debug.profile: is the file of debug.trace too: name another"});
}

TEST(Advise, AProfileShowsSteps) {
  RunConfig config = sound();
  config.debug.profile = "p.json";
  EXPECT_EQ(advice(config), List{});
  config.run.steps = 0;
  EXPECT_EQ(advice(config).back(), "debug.profile: has an effect only in runs of at least one step");
}

RunConfig with_experts(std::int64_t experts, std::int64_t top_k, std::int64_t expert) {
  RunConfig config = sound();
  config.model.moe = MoeConfig{};
  config.model.moe->experts = experts;
  config.model.moe->top_k = top_k;
  config.parallel.expert = expert;
  return config;
}

TEST(Check, ExpertsAreSharedEvenly) {
  EXPECT_EQ(contradictions(with_experts(6, 2, 3)), List{});
  EXPECT_EQ(contradictions(with_experts(6, 2, 4)),
            List{"parallel.expert: 4 does not divide 6 experts, of which each rank of a group holds as many: use 1, 2, "
                 "3 or 6"});
  RunConfig config = sound();
  config.parallel.expert = 2;
  EXPECT_EQ(contradictions(config), List{"parallel.expert: 2 ranks would hold the experts between them, and the model "
                                         "has none: use 1, or give model.moe"});
}

// A token goes at most once to each expert of a rank, and to at most top_k experts.
TEST(Derive, RoomForExpertsRowsIsAlwaysEnough) {
  const auto room = [](RunConfig config) {
    derive(config);
    return config.parallel.expert_room.get();
  };
  EXPECT_EQ(room(sound()), 1);
  EXPECT_EQ(room(with_experts(8, 2, 1)), 1);
  EXPECT_EQ(room(with_experts(8, 2, 4)), 4);
  EXPECT_EQ(room(with_experts(8, 4, 4)), 2);
  EXPECT_EQ(room(with_experts(4, 3, 4)), 4.0 / 3);
  RunConfig given = with_experts(8, 2, 4);
  given.parallel.expert_room = 1.5;
  EXPECT_EQ(room(given), 1.5);
  EXPECT_EQ(advice(given), List{});
  given.parallel.expert_room = 5.0;
  EXPECT_EQ(advice(given), List{"parallel.expert_room: 5 is more than can arrive: 4 is enough for any routing, and "
                                "memory is planned for no more"});
  given.parallel = {1, 1.5};
  EXPECT_EQ(advice(given), List{"parallel.expert_room: has an effect only with parallel.expert above 1"});
}

TEST(Check, NamesEveryMicroBatchThatWouldDo) {
  EXPECT_EQ(batch_advice({12, 4}, 2), "use batch.micro 1, 2, 3 or 6, or batch.global 8 or 16");
  EXPECT_EQ(batch_advice({36, 5}, 1), "use batch.micro 1, 2, 3, 4, 6, 9, 12, 18 or 36, or batch.global 35 or 40");
  EXPECT_EQ(batch_advice({3, 2}, 3), "use batch.micro 1, or batch.global 6");
  EXPECT_EQ(batch_advice({2, 1}, 3), "no batch.micro divides it: use batch.global 3");
}

TEST(Check, TokenFilesNeedAVocabulary) {
  RunConfig config = sound();
  config.data.kind = DataKind::tokens;
  config.sample.tokens = 5;
  EXPECT_EQ(contradictions(config),
            (List{"model.vocab: missing: token files do not say how large their vocabulary is; give it, or "
                  "data.tokenizer",
                  "sample.tokens: needs data.tokenizer, or data.kind text"}));
  config.model.vocab = 50257;
  config.data.tokenizer = "/some/tokenizer.json";
  EXPECT_EQ(contradictions(config), List{});
  config.data.tokenizer.clear();
  config.sample.tokens = 0;
  EXPECT_EQ(contradictions(config), List{});
  config.data.eval_files = {"val.bin"};
  config.data.eval_fraction = 0.1;
  EXPECT_EQ(contradictions(config), List{"data.eval_fraction: keeps a share of 0.1 of the files for evaluation, and "
                                         "eval_files are for it: leave one of them out"});
  config.data.eval_fraction = 0;
  EXPECT_EQ(contradictions(config), List{});
}

TEST(Check, AMixtureHasAWeightForEachPattern) {
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

TEST(Check, WsdNeedsItsDecayWithinTheRun) {
  RunConfig config = sound();
  config.optimizer.schedule = RateSchedule::wsd;
  EXPECT_EQ(contradictions(config), List{"optimizer.decay_steps: missing: schedule wsd needs it"});
  config.optimizer.decay_steps = 80;
  config.optimizer.warmup_steps = 20;
  EXPECT_EQ(contradictions(config), List{});
  config.optimizer.warmup_steps = 21;
  EXPECT_EQ(contradictions(config),
            List{"optimizer.decay_steps: warm-up 21 and decay 80 are longer than the run of 100 steps"});
}

/// A config of this recipe with weights held like this.
RunConfig holding(RecipeName recipe, PrimaryWeights held, GatherWire wire = GatherWire::automatic) {
  RunConfig config = sound();
  config.precision.recipe = recipe;
  config.precision.primary_weights = held;
  config.proof.wire = wire;
  return config;
}

TEST(Derive, CutsFollowFromWhatTravels) {
  const auto cuts = [](const RunConfig& config) {
    RunConfig derived = config;
    derive(derived);
    return derived.proof.cuts.get();
  };
  using enum PrimaryWeights;
  RunConfig derived = holding(RecipeName::nvfp4, bf16);
  derived.precision.primary_weights = {};
  derive(derived);
  EXPECT_EQ(derived.precision.primary_weights.get(), quantized);
  EXPECT_EQ(cuts(sound()), GatherCuts::flat);
  EXPECT_EQ(cuts(holding(RecipeName::mxfp8, quantized)), GatherCuts::flat);  // auto: bf16 travels
  EXPECT_EQ(cuts(holding(RecipeName::mxfp8, quantized, GatherWire::quantized)), GatherCuts::tile);
  EXPECT_EQ(cuts(holding(RecipeName::mxfp8, quantized, GatherWire::bf16)), GatherCuts::flat);
  for (RecipeName recipe : {RecipeName::fp8_block, RecipeName::fp8_tensor, RecipeName::mxfp8_2d, RecipeName::nvfp4})
    EXPECT_EQ(cuts(holding(recipe, quantized, GatherWire::quantized)), GatherCuts::flat);
}

TEST(Check, WeightsTravelAsTheyAreHeld) {
  using enum PrimaryWeights;
  EXPECT_EQ(contradictions(holding(RecipeName::nvfp4, bf16, GatherWire::quantized)),
            List{"proof.wire: is quantized, and weights that are held in bf16 have no codes that could travel: use "
                 "wire auto, or primary_weights quantized"});
  RunConfig flat = holding(RecipeName::mxfp8, quantized, GatherWire::quantized);
  flat.proof.cuts = GatherCuts::flat;
  EXPECT_EQ(contradictions(flat), List{"proof.cuts: is flat, and codes of mxfp8 travel by whole rows of blocks: use "
                                       "cuts tile, or wire bf16"});
  flat.proof.cuts = GatherCuts::tile;
  EXPECT_EQ(contradictions(flat), List());
}

TEST(Check, WhatCheckpointsCannotBe) {
  RunConfig config = sound();
  config.checkpoint.quantized = true;
  EXPECT_EQ(contradictions(config), List{"checkpoint.quantized: recipe bf16 quantizes no weight: leave quantized out, "
                                         "or choose another recipe"});
  RunConfig coded = holding(RecipeName::nvfp4, PrimaryWeights::quantized);
  coded.checkpoint.quantized = true;
  EXPECT_EQ(contradictions(coded), List{});
  coded.sharding = Sharding::full;
  coded.proof.cuts = GatherCuts::tile;
  EXPECT_EQ(contradictions(coded), List{"checkpoint.quantized: is true, and with sharding full no rank holds whole "
                                        "weights: leave it out and run `tessera quantize` on model.h5, or use sharding "
                                        "optimizer"});
  config.checkpoint = {};
  config.checkpoint.async = true;
  derive(config);
  EXPECT_EQ(config.checkpoint.io.get(), CheckpointIo::direct);
  EXPECT_EQ(contradictions(config), List());
  config.checkpoint.io = CheckpointIo::mpio;
  EXPECT_EQ(contradictions(config), List{"checkpoint.io: is mpio, and no thread beside training may use MPI: use io "
                                         "direct, or leave io or async out"});
}

TEST(Check, StagingNeedsSomethingThatIsStaged) {
  using enum PrimaryWeights;
  const auto staged = [](RunConfig config, GatherStaging staging) {
    config.proof.staging = staging;
    return contradictions(config);
  };
  for (const GatherStaging staging : {GatherStaging::alias_grads, GatherStaging::ring}) {
    const List nothing{"proof.staging: is " + std::string(name_of(staging)) +
                       ", and nothing is staged: only weights that are held quantized and travel as bf16 are; use "
                       "auto"};
    EXPECT_EQ(staged(sound(), staging), nothing);
    EXPECT_EQ(staged(holding(RecipeName::mxfp8, bf16), staging), nothing);
    EXPECT_EQ(staged(holding(RecipeName::nvfp4, quantized), staging), nothing);
    EXPECT_EQ(staged(holding(RecipeName::mxfp8, quantized, GatherWire::quantized), staging), nothing);
    EXPECT_EQ(staged(holding(RecipeName::mxfp8, quantized), staging), List());
    EXPECT_EQ(staged(holding(RecipeName::nvfp4, quantized, GatherWire::bf16), staging), List());
  }
}

TEST(Derive, FullShardingCutsBetweenRowsOfBlocksAndGathersModulesWhereCopiesDiffer) {
  using enum PrimaryWeights;
  const auto sharded = [](RecipeName recipe, PrimaryWeights held, RecomputeMode mode = RecomputeMode::none) {
    RunConfig config = holding(recipe, held);
    config.sharding = Sharding::full;
    config.recompute.mode = mode;
    derive(config);
    return config;
  };
  EXPECT_EQ(sharded(RecipeName::bf16, bf16).proof.cuts.get(), GatherCuts::flat);
  for (PrimaryWeights held : {bf16, quantized})
    EXPECT_EQ(sharded(RecipeName::nvfp4, held).proof.cuts.get(), GatherCuts::tile);
  EXPECT_TRUE(gathers_modules(sharded(RecipeName::mxfp8, quantized, RecomputeMode::selective)));
  EXPECT_FALSE(gathers_modules(sharded(RecipeName::mxfp8, bf16, RecomputeMode::selective)));
  EXPECT_FALSE(gathers_modules(sharded(RecipeName::mxfp8, quantized, RecomputeMode::full)));
  EXPECT_FALSE(gathers_modules(sharded(RecipeName::mxfp8_2d, quantized, RecomputeMode::selective)));
  RunConfig asked = sharded(RecipeName::bf16, bf16);
  asked.gather.granularity = GatherGranularity::module;
  EXPECT_TRUE(gathers_modules(asked));
}

TEST(Check, FullShardingGathersWhatItKeeps) {
  using enum PrimaryWeights;
  RunConfig config = sound();
  config.gather.granularity = GatherGranularity::block;
  EXPECT_EQ(contradictions(config), List{"gather.granularity: is block, and weights are gathered for use only where "
                                         "sharding is full: use auto, or sharding full"});
  config.sharding = Sharding::full;
  EXPECT_EQ(contradictions(config), List{});
  config.reduce.bucket_mib = 1;
  EXPECT_EQ(advice(config), List{"reduce.bucket_mib: has an effect only with sharding: optimizer: under full sharding "
                                 "gradients travel module by module"});
  RunConfig coded = holding(RecipeName::mxfp8, quantized, GatherWire::bf16);
  coded.sharding = Sharding::full;
  coded.proof.cuts = GatherCuts::flat;
  EXPECT_EQ(contradictions(coded),
            (List{"proof.wire: is bf16, and full sharding gathers what it keeps, which is codes: use wire auto, "
                  "primary_weights bf16, or sharding optimizer",
                  "proof.cuts: is flat, and full sharding cuts what a recipe quantizes between rows of blocks: use "
                  "cuts tile, or sharding optimizer"}));
}

TEST(Check, SurvivesAConfigOfZeros) { EXPECT_NO_THROW(contradictions(RunConfig())); }

TEST(Advise, NamesKeysWithoutEffect) {
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
  RunConfig plain = sound();
  plain.proof.cuts = GatherCuts::tile;
  plain.proof.wire = GatherWire::bf16;
  EXPECT_EQ(advice(plain), (List{"proof.wire: weights that are held in bf16 travel in it anyway",
                                 "proof.cuts: has an effect only on weights that the recipe quantizes"}));
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

TEST(Keys, AreThoseWithAFeatureBehindThem) {
  std::string keys;
  for (const KeyDoc& doc : key_docs()) {
    const std::string last = doc.path.substr(doc.path.rfind('.') + 1);
    keys += doc.kind == KeyDoc::Kind::section ? "\n" + doc.path + ":" : (keys.empty() ? "" : " ") + last;
  }
  EXPECT_EQ(keys, R"(schema_version
run: name seed steps mfu_peak threads log_every
model: layers hidden heads kv_heads head_dim ffn seq_len norm norm_eps qk_norm position rope_base )"
            R"(activation bias qkv_bias tied_head vocab
model.rope_scaling: factor low_freq_factor high_freq_factor original_seq_len
model.moe: experts top_k ffn first_dense every shared_ffn shared_gate weights scores logits renormalize scale groups )"
            R"(top_groups bias bias_rate balance_over balance_coef z_coef
recompute: mode modules
data: kind root files mixture eval_files tokenizer eval_fraction eval_windows eval_seed shuffle seed
batch: global micro
eval: every_steps batches
sample: tokens every_steps prompt
precision: compute recipe primary_weights fuse_wgrad quantize_head bf16_first bf16_last statistics_every seed sharding
gather: granularity
reduce: bucket_mib order
optimizer: matrices lr beta1 beta2 eps weight_decay moments clip schedule )"
            R"(warmup_steps decay_steps min_lr max_skips skip_spikes
optimizer.muon: momentum nesterov coefficients scale
parallel: expert expert_room
comm: timeout_s
checkpoint: dir every_steps keep_last keep_every expert_layout io mpio_hints async quantized )"
            R"(init_from init_missing init_rows init_ignore_extra init_other_tokenizer
debug: replica_hash_every spot_check_every confirm_skips trace profile
proof: gather_overlap wire cuts staging reduce_overlap graph copy_engines share_gpu mixed_hosts)");
}

// Keys on which the tensors, the state or the data order of a run depend: with another value a resumed run would have
// other bits.
TEST(Keys, FixedAreThoseThatAResumedRunCannotChange) {
  std::string fixed, on_request;
  for (const KeyDoc& doc : key_docs()) {
    if (doc.kind != KeyDoc::Kind::key || doc.restart == Restart::may_change) continue;
    (doc.restart == Restart::fixed ? fixed : on_request) += doc.path + " ";
  }
  EXPECT_EQ(fixed,
            "schema_version run.seed model.layers model.hidden model.heads model.kv_heads "
            "model.head_dim model.ffn model.seq_len model.norm model.norm_eps model.qk_norm model.position "
            "model.rope_base model.activation model.bias model.qkv_bias model.tied_head model.vocab "
            "model.rope_scaling.factor model.rope_scaling.low_freq_factor model.rope_scaling.high_freq_factor "
            "model.rope_scaling.original_seq_len model.moe.experts model.moe.top_k model.moe.ffn model.moe.first_dense "
            "model.moe.every model.moe.shared_ffn model.moe.shared_gate model.moe.scores model.moe.logits "
            "model.moe.renormalize model.moe.scale model.moe.groups model.moe.top_groups model.moe.bias "
            "model.moe.balance_over data.seed "
            "precision.compute optimizer.matrices optimizer.beta1 optimizer.beta2 optimizer.eps "
            "optimizer.moments optimizer.muon.momentum optimizer.muon.nesterov optimizer.muon.coefficients "
            "optimizer.muon.scale ");
  EXPECT_EQ(on_request,
            "run.steps data.kind data.mixture data.eval_fraction data.eval_windows data.eval_seed data.shuffle "
            "batch.global optimizer.schedule optimizer.warmup_steps optimizer.decay_steps ");
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
