#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <set>

#include "app/training/loop/training.hpp"
#include "core/comm/mpi.hpp"
#include "core/plan/library_plans.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/checkpoint/writer.hpp"
#include "io/convert/convert_checkpoint.hpp"
#include "io/deck/deck.hpp"
#include "io/files/text_file.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/checkpoint_trial.hpp"
#include "tests/support/page_cache.hpp"
#include "tests/support/self_control.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/small_runs.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace test;

TEST(Checkpoints, LoadOnOtherRanksAndLayoutsWithTheSameDigest) {
  Trial first(config_of(ExpertWeights::single));
  const SharedFolder folder(first.control());
  first.train(3);
  for (ExpertWeights in_file : layouts) {
    SCOPED_TRACE(shown(in_file));
    const std::string digest = first.save(folder.path(), in_file);
    const fs::path saved = folder.path() / step_folder(3);
    EXPECT_EQ(Checkpoint(saved).manifest().content_digest, digest);
    EXPECT_TRUE(Checkpoint(saved).verify().empty());
    for (ExpertWeights in_memory : layouts) {
      SCOPED_TRACE(shown(in_memory));
      Trial again(config_of(in_memory));
      again.load(saved);
      const SharedFolder other(again.control());
      EXPECT_EQ(again.save(other.path(), in_memory), digest);
      // Every rank by itself: a run of one rank that reads what all wrote, and writes what it read.
      Trial alone(config_of(in_memory), true);
      alone.load(saved);
      const test::TemporaryFolder own;
      EXPECT_EQ(alone.save(own.path(), in_memory), digest);
      EXPECT_TRUE(Checkpoint(own.path() / step_folder(3)).verify().empty());
      // The reverse: all ranks read what one rank wrote.
      const fs::path from_one = again.control().broadcast((own.path() / step_folder(3)).string());
      again.load(from_one);
      EXPECT_EQ(again.save(other.path(), in_file), digest);
    }
  }
}

/// Expects that a file just saved was written by direct I/O: if its file system has a disk, less than half of it is in
/// the page cache. Drops the rest from the cache, so that later reads come from the disk.
void expect_past_the_cache(const fs::path& path) {
  const std::ptrdiff_t cached = test::cached_pages(path);
  test::drop_from_cache(path);
  const bool has_disk = test::cached_pages(path) == 0;
  EXPECT_TRUE(!has_disk || 2 * cached < static_cast<std::ptrdiff_t>(fs::file_size(path)) / page_bytes)
      << path << " has " << cached << " pages in the cache";
}

TEST(Checkpoints, OfLargeTensorsAreSavedPastTheCacheAndLoadPastAndThroughIt) {
  RunConfig config = config_of(ExpertWeights::single);
  config.model.vocab = std::int64_t{2111};
  config.model.moe->ffn = std::int64_t{200};
  config.reduce.bucket_mib = 0.3;
  derive(config);
  Trial first(config);
  const SharedFolder folder(first.control());
  first.train(1);
  for (ExpertWeights in_file : layouts) {
    SCOPED_TRACE(shown(in_file));
    const std::string digest = first.save(folder.path(), in_file);
    const fs::path saved = folder.path() / step_folder(1);
    if (mpi().rank() == 0)
      for (const char* name : {model_file, optimizer_file}) expect_past_the_cache(saved / name);
    for (const bool cold : {true, false}) {
      SCOPED_TRACE(shown(cold));
      Trial again(config), alone(config, true);
      const Checkpoint together(saved, again.control()), own(saved);
      again.control().max(0);
      if (cold && mpi().rank() == 0)
        for (const char* name : {model_file, optimizer_file}) test::drop_from_cache(saved / name);
      again.control().max(0);
      again.load(together);
      alone.load(own);
      const SharedFolder other(again.control());
      EXPECT_EQ(again.save(other.path(), in_file), digest);
    }
  }
}

std::string refused(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::file) << error.what();
    return error.what();
  }
  return "nothing was refused";
}

TEST(Checkpoints, AreOpenedByAllRanksAlike) {
  Trial run(config_of(ExpertWeights::discrete));
  const SharedFolder folder(run.control());
  run.train(1);
  run.save(folder.path(), ExpertWeights::discrete);
  const fs::path saved = folder.path() / step_folder(1);
  {
    const Checkpoint together(saved, run.control()), alone(saved);
    EXPECT_EQ(together.tensors(), alone.tensors());
    EXPECT_EQ(to_json(together.manifest()), to_json(alone.manifest()));
    EXPECT_FALSE(together.weights_only());
    EXPECT_TRUE(together.verify().empty());
  }
  // Damage that only rank 0 sees makes all ranks throw rank 0's message.
  run.control().max(0);
  if (mpi().rank() == 0) fs::resize_file(saved / optimizer_file, 100);
  run.control().max(0);
  const std::string why = refused([&] { Checkpoint(saved, run.control()); });
  EXPECT_NE(why.find("it was truncated or changed"), std::string::npos) << why;
  EXPECT_EQ(run.control().broadcast(why), why);
  EXPECT_NE(refused([&] { Checkpoint(folder.path() / "nowhere", run.control()); }).find("is no checkpoint folder"),
            std::string::npos);
}

TEST(Checkpoints, KeepTheLibrariesPlans) {
  const RunConfig config = config_of(ExpertWeights::single);
  Trial run(config);
  const SharedFolder folder(run.control());
  Origin origin = origin_of(config, ExpertWeights::single);
  LibraryPlans plans{"Library 1.2, GPU X", {}};
  for (std::uint64_t i = 0; i < 600; ++i) plans.choices.of[{i, ~i, 3, 4, 5, 6, 7, 8}] = {9, i * i};  // more than 64 KiB
  run.train(1);
  run.save(folder.path(), origin);
  EXPECT_EQ(Checkpoint(folder.path() / step_folder(1)).library_plans(), "");
  origin.library_plans = to_text(plans);
  run.train(2);
  run.save(folder.path(), origin);
  EXPECT_EQ(parse_library_plans(Checkpoint(folder.path() / step_folder(2)).library_plans()), plans);
}

TEST(Checkpoints, ResumeChangesNoBit) {
  for (ExpertWeights experts : layouts) {
    const RunConfig config = config_of(experts);
    Trial whole(config);
    const std::vector<MetricsRow> expected = whole.train();
    const SharedFolder folder(whole.control());
    const std::string final_digest = whole.save(folder.path());
    for (std::int64_t stop : {experts == ExpertWeights::single ? 0 : 4}) {
      Trial before(config);
      std::vector<MetricsRow> rows = before.train(stop);
      before.save(folder.path());
      Trial after(config);
      after.load(folder.path() / step_folder(stop));
      for (const MetricsRow& row : after.train()) rows.push_back(row);
      ASSERT_EQ(rows.size(), expected.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        ASSERT_TRUE(std::isfinite(rows[i].loss));
        EXPECT_EQ(rows[i].loss, expected[i].loss) << stop << ", step " << i + 1;
        EXPECT_EQ(rows[i].grad_norm, expected[i].grad_norm) << stop << ", step " << i + 1;
      }
      EXPECT_EQ(after.save(folder.path()), final_digest) << stop;
    }
  }
}

TEST(Checkpoints, SavingChangesNoBit) {
  const RunConfig config = config_of(ExpertWeights::single);
  Trial quiet(config), busy(config);
  const SharedFolder folder(quiet.control());
  const std::vector<MetricsRow> expected = quiet.train();
  std::vector<MetricsRow> rows;
  const auto keep = [&](const MetricsRow& row) {
    rows.push_back(row);
    return Problems();
  };
  test::all_steps(busy.training(), keep, [&](std::int64_t) {
    busy.save(folder.path());
    return Proceed::go_on;
  });
  ASSERT_EQ(rows.size(), expected.size());
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].loss, expected[i].loss) << i;
  EXPECT_EQ(step_folders(folder.path()).size(), expected.size() + 1);
  quiet.control().max(0);
  if (mpi().rank() == 0) retire(folder.path(), {2, 4});
  quiet.control().max(0);
  std::vector<std::int64_t> left;
  for (const StepFolder& step : step_folders(folder.path())) left.push_back(step.step);
  EXPECT_EQ(left, (std::vector<std::int64_t>{0, 4, 5, 6}));
}

TEST(Checkpoints, OfAnotherModelAreRefusedWithAList) {
  Trial run(config_of(ExpertWeights::single));
  const SharedFolder folder(run.control());
  run.train(1);
  run.save(folder.path());
  RunConfig wider = config_of(ExpertWeights::single);
  wider.model.moe->ffn = std::int64_t{48};
  Trial other(wider);
  const std::string text = refused([&] { other.load(folder.path() / step_folder(1)); });
  EXPECT_NE(text.find("shape: /model/layers.0.moe.experts.gate_up.weight is [4,80,32], the model has [4,96,32]"),
            std::string::npos)
      << text;
  RunConfig dense = config_of(ExpertWeights::single);
  dense.model.moe.reset();
  Trial plain(dense);
  const std::string list = refused([&] { plain.load(folder.path() / step_folder(1)); });
  EXPECT_NE(list.find("missing: /model/"), std::string::npos) << list;
  EXPECT_NE(list.find("extra: /adamw/v/layers.1.moe.router.weight"), std::string::npos) << list;
}

TEST(Checkpoints, CountersOfRulesAreMatchedByName) {
  const RunConfig config = config_of(ExpertWeights::single);
  Trial run(config);
  const SharedFolder folder(run.control());
  run.train(2);
  StateDict state = run.training().state();
  const std::vector<RuleCounter> own = state.counters.rules;
  ASSERT_EQ(own.size(), 3u);
  EXPECT_EQ(own[0], (RuleCounter{"t", std::int64_t{2}}));
  EXPECT_EQ(own[1], (RuleCounter{"beta1_power", config.optimizer.beta1 * config.optimizer.beta1}));
  CheckpointWriter writer(run.device(), run.control());
  const auto saved_with = [&](const std::vector<RuleCounter>& counters) {
    state.counters.rules = counters;
    return writer.save(folder.path(), state, origin_of(config, ExpertWeights::single));
  };
  const fs::path saved = folder.path() / step_folder(2);
  const std::string digest = saved_with(own);
  Trial other(config);
  const auto why_refused = [&](const std::vector<RuleCounter>& counters) {
    EXPECT_NE(saved_with(counters), digest);
    EXPECT_TRUE(Checkpoint(saved).verify().empty());
    return refused([&] { other.load(saved); });
  };
  const RuleCounter further{"further_updates", std::int64_t{7}};
  EXPECT_NE(why_refused({own[0], own[1], own[2], further}).find("1 difference\n  extra: /counters/further_updates"),
            std::string::npos);
  EXPECT_NE(why_refused({own[1], own[2]}).find("1 difference\n  missing: /counters/t"), std::string::npos);
  const std::string both = why_refused({own[0], own[1], {"beta2_power", std::int64_t{1}}, further});
  EXPECT_NE(both.find("type: /counters/beta2_power is i64, the optimizer has f64"), std::string::npos) << both;
  EXPECT_NE(both.find("2 differences"), std::string::npos) << both;
  // Counters are matched by name, not by position.
  EXPECT_EQ(saved_with({own[2], own[0], own[1]}), digest);
  other.load(saved);
  EXPECT_EQ(other.training().state().counters.rules, own);
}

TEST(Checkpoints, ASlotMayCoverSomeTensorsAlone) {
  const RunConfig config = config_of(ExpertWeights::single);
  Trial run(config);
  const SharedFolder folder(run.control());
  run.train(2);
  // A state as if another rule stepped the experts: without AdamW's second moments of them, and with the first moments
  // in a slot of that rule.
  const auto with_two_rules = [](Trial& trial) {
    StateDict state = trial.training().state();
    std::erase_if(state.tensors, [](const StateTensor& t) { return t.slot == "adamw/v" && t.role == Role::expert; });
    for (StateTensor& tensor : state.tensors)
      if (tensor.slot == "adamw/m" && tensor.role == Role::expert) tensor.slot = "other/momentum";
    state.counters.rules.push_back({"other_updates", std::int64_t{3}});
    state.digests = trial.device().allocate(Category::staging, DType::u64, {std::ssize(state.tensors)});
    return state;
  };
  Origin origin = origin_of(config, ExpertWeights::single);
  origin.deck = resolved_text({config, {}});
  const StateDict state = with_two_rules(run);
  const std::string digest = CheckpointWriter(run.device(), run.control()).save(folder.path(), state, origin);
  const fs::path saved = folder.path() / step_folder(2);
  const auto paths = [](const auto& tensors) {
    std::set<std::string> all;
    for (const auto& tensor : tensors) all.insert(tensor.path());
    return all;
  };
  EXPECT_TRUE(paths(state.tensors).contains("/other/momentum/layers.1.moe.experts.down.weight"));
  EXPECT_EQ(paths(Checkpoint(saved).tensors()), paths(state.tensors));

  // A run with AdamW alone refuses it and names missing and extra tensors.
  Trial plain(config);
  const std::string why = refused([&] { plain.load(saved); });
  for (const char* line : {"missing: /adamw/m/layers.0.moe.experts.down.weight",
                           "missing: /adamw/v/layers.0.moe.experts.down.weight",
                           "extra: /other/momentum/layers.0.moe.experts.down.weight", "extra: /counters/other_updates"})
    EXPECT_NE(why.find(line), std::string::npos) << line << " is not in " << why;

  // A run with the same rules loads it; saved again, and converted, it has the same digest.
  Trial again(config);
  StateDict wanted = with_two_rules(again);
  const Checkpoint checkpoint(saved, again.control());
  load(checkpoint, wanted, again.device(), again.control());
  EXPECT_EQ(wanted.counters, state.counters);
  const SharedFolder other(again.control());
  EXPECT_EQ(CheckpointWriter(again.device(), again.control()).save(other.path(), wanted, origin), digest);
  if (mpi().rank() == 0) {
    ConvertOptions options;
    options.from = saved;
    options.to = other.path() / "discrete";
    options.experts = ExpertWeights::discrete;
    EXPECT_EQ(convert_checkpoint(options).content_digest, digest);
    const Checkpoint converted(options.to);
    EXPECT_TRUE(converted.verify().empty());
    EXPECT_EQ(converted.manifest().counters, state.counters);
  }
}

/// Reads on all ranks but the last, which throws an exception that is not an Error.
class FailsOnOneRank final : public TensorSource {
 public:
  explicit FailsOnOneRank(const Checkpoint& whole) : whole_(whole) {}
  std::string name() const override { return whole_.name(); }
  const std::vector<StoredTensor>& tensors() const override { return whole_.tensors(); }
  bool has_digests() const override { return true; }
  void read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const override {
    if (mpi().rank() == mpi().size() - 1) throw std::runtime_error("no memory for this read");
    whole_.read(tensor, first, count, to);
  }

 private:
  const Checkpoint& whole_;
};

TEST(Checkpoints, WhatOneRankCannotReadEndsTheLoadOnAll) {
  Trial run(config_of(ExpertWeights::single));
  const SharedFolder folder(run.control());
  run.train(1);
  run.save(folder.path());
  const Checkpoint saved(folder.path() / step_folder(1), run.control());
  const FailsOnOneRank source(saved);
  try {
    run.training().restore([&](StateDict& state) { load_weights(source, state, run.device(), run.control()); });
    ADD_FAILURE() << "one rank could not read";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::internal);
    EXPECT_NE(std::string(error.what()).find("no memory for this read"), std::string::npos) << error.what();
  }
}

TEST(Checkpoints, NonFiniteStateIsRefusedAndNothingRemains) {
  Trial run(config_of(ExpertWeights::single));
  const SharedFolder folder(run.control());
  run.train(1);
  run.save(folder.path());
  const std::string latest = read_text_file(folder.path() / "latest");
  StateDict state = run.training().state();
  state.counters.step = 2;
  for (const StateTensor& tensor : state.tensors)
    if (mpi().rank() == mpi().size() - 1 && !tensor.ranges.empty()) {
      const float infinite = INFINITY;
      run.device().upload(run.device().compute(), tensor.ranges.front().values.flat(0, 1), &infinite);
      break;
    }
  CheckpointWriter writer(run.device(), run.control());
  try {
    writer.save(folder.path(), state, origin_of(config_of(ExpertWeights::single), ExpertWeights::single));
    FAIL() << "an infinite weight was saved";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::numerical);
    EXPECT_NE(std::string(error.what()).find("1 of the "), std::string::npos) << error.what();
  }
  run.control().max(0);
  EXPECT_EQ(read_text_file(folder.path() / "latest"), latest);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);  // the step and latest
}

class Damage {
 public:
  explicit Damage(fs::path file) : file_(std::move(file)), sound_(read_text_file(file_)) {}
  ~Damage() { write(sound_); }
  void flip(std::size_t bit) {
    std::string bytes = sound_;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    write(bytes);
  }
  void cut(std::size_t bytes) { write(sound_.substr(0, bytes)); }
  void append() { write(sound_ + "x"); }
  std::size_t bytes() const { return sound_.size(); }

 private:
  void write(const std::string& bytes) {
    std::ofstream(file_, std::ios::binary).write(bytes.data(), std::ssize(bytes));
  }
  fs::path file_;
  std::string sound_;
};

/// Whether reading finds no error and no difference: then the damage lies where nothing is read.
bool sound(const fs::path& folder, const std::string& digest) {
  try {
    const Checkpoint checkpoint(folder);
    return checkpoint.verify().empty() && checkpoint.manifest().content_digest == digest;
  } catch (const Error&) {
    return false;
  }
}

/// All bytes of all tensors.
std::vector<char> everything(const Checkpoint& checkpoint) {
  std::vector<char> all;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const std::size_t at = all.size();
    all.resize(at + static_cast<std::size_t>(tensor.shape.elements() * size_of(tensor.type)));
    checkpoint.read(tensor, 0, tensor.shape.elements(), all.data() + at);
  }
  return all;
}

TEST(Checkpoints, DamageIsFound) {
  if (mpi().size() > 1) return;  // one rank suffices: reading is local
  Trial run(config_of(ExpertWeights::discrete));
  const SharedFolder folder(run.control());
  run.train(1);
  const std::string digest = run.save(folder.path(), ExpertWeights::discrete);
  const fs::path saved = folder.path() / step_folder(1);
  ASSERT_TRUE(sound(saved, digest));
  const std::vector<char> truth = everything(Checkpoint(saved));
  for (const char* name : {model_file, optimizer_file, manifest_file, deck_file}) {
    Damage damage(saved / name);
    for (std::size_t left : {std::size_t{0}, std::size_t{5}, damage.bytes() / 2, damage.bytes() - 2}) {
      damage.cut(left);
      EXPECT_FALSE(sound(saved, digest)) << name << " cut to " << left;
    }
    damage.append();
    EXPECT_TRUE(std::string(name) == manifest_file || !sound(saved, digest)) << name << " with a byte more";
    int found = 0;
    for (std::uint64_t i = 0; i < 75; ++i) {
      damage.flip(static_cast<std::size_t>(random_bits({9, 9}, i) % (damage.bytes() * 8)));
      if (!sound(saved, digest)) {
        ++found;
      } else {
        EXPECT_EQ(everything(Checkpoint(saved)), truth) << name << ", flip " << i;
      }
    }
    EXPECT_GT(found, 50) << name;
  }
  EXPECT_TRUE(sound(saved, digest));
}

TEST(Checkpoints, TheNewestValidStepIsFound) {
  if (mpi().size() > 1) return;
  Trial run(config_of(ExpertWeights::single));
  const SharedFolder folder(run.control());
  for (std::int64_t step : {1, 2, 3}) {
    run.train(step);
    run.save(folder.path());
  }
  EXPECT_EQ(find_checkpoint(folder.path()), folder.path() / step_folder(3));
  Damage newest(folder.path() / step_folder(3) / model_file), second(folder.path() / step_folder(2) / manifest_file);
  newest.cut(100);
  testing::internal::CaptureStderr();
  EXPECT_EQ(find_checkpoint(folder.path()), folder.path() / step_folder(2));
  const std::string told = testing::internal::GetCapturedStderr();
  const std::string third = (folder.path() / step_folder(3)).string();
  EXPECT_NE(told.find("checkpoints passed over:\n  " + third), std::string::npos) << told;
  second.cut(20);
  EXPECT_EQ(find_checkpoint(folder.path()), folder.path() / step_folder(1));
  fs::remove_all(folder.path() / step_folder(1));
  EXPECT_NE(refused([&] { find_checkpoint(folder.path()); }).find("holds no valid checkpoint"), std::string::npos);
  EXPECT_NE(refused([&] { find_checkpoint(folder.path() / "nowhere"); }).find("neither"), std::string::npos);
}

TEST(Checkpoints, OfALaterFormatSayWhatThisBuildReads) {
  Manifest later;
  later.format = {2, 0};
  EXPECT_NE(refused([&] { parse_manifest(to_json(later), "m"); }).find("format 2.0, this build reads 1.0"),
            std::string::npos);
  later.format = {1, 6};
  EXPECT_NE(refused([&] { parse_manifest(to_json(later), "m"); }).find("format 1.6, this build reads 1.0-1.5"),
            std::string::npos);
}

TEST(Sha256, OfTheStandardsExamples) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

}  // namespace
}  // namespace tessera
