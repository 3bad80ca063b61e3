#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/optim/adamw.hpp"
#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/convert/convert_checkpoint.hpp"
#include "io/convert/hf_config.hpp"
#include "io/convert/hf_folder.hpp"
#include "io/convert/safetensors.hpp"
#include "io/deck/deck.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/tiny_gpt.hpp"
#include "tests/support/tolerances.hpp"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path golden_folder(const std::string& name) { return fs::path(__FILE__).parent_path() / "../../oracle/hf" / name; }

/// Contents of a folder's safetensors: type, shape and bytes by name; fp16 as fp32.
struct Content {
  DType type;
  Shape shape;
  std::vector<std::byte> bytes;
  bool operator==(const Content&) const = default;
};
std::map<std::string, Content> content_of(const fs::path& folder) {
  std::map<std::string, Content> all;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const PosixFile file(entry.path(), PosixFile::Mode::read);
    for (const SourceTensor& tensor : list_safetensors(entry.path())) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.shape.elements() * size_of(tensor.type)));
      read_elements(file, tensor, 0, tensor.shape.elements(), bytes.data());
      EXPECT_TRUE(all.emplace(tensor.name, Content{tensor.type, tensor.shape, std::move(bytes)}).second) << tensor.name;
    }
  }
  EXPECT_GT(all.size(), 10u) << folder;
  return all;
}

/// Whether a tensor stays fp32 in a model of bf16: the bias by which a router chooses.
bool stays_wide(std::string_view name) {
  return name.ends_with("e_score_correction_bias") || name.ends_with("router.bias");
}

std::map<std::string, Content> rounded(std::map<std::string, Content> all) {
  for (auto& [name, content] : all) {
    if (stays_wide(name)) continue;
    std::vector<std::byte> narrow(content.bytes.size() / 2);
    convert_elements(narrow.data(), DType::bf16, content.bytes.data(), content.type, content.shape.elements());
    content = {DType::bf16, content.shape, std::move(narrow)};
  }
  return all;
}

ConvertReport convert(const fs::path& from, const fs::path& to, ConvertOptions options = {}) {
  options.from = from;
  options.to = to;
  return convert_checkpoint(options);
}
ConvertOptions to_safetensors() {
  ConvertOptions options;
  options.target = Target::safetensors;
  return options;
}

std::vector<double> weight(const Checkpoint& checkpoint, const ParamSpec& spec) {
  const auto stored = std::ranges::find(checkpoint.tensors(), "/model/" + spec.canonical.name, &StoredTensor::path);
  EXPECT_NE(stored, checkpoint.tensors().end()) << spec.name;
  const std::int64_t real = spec.members == 1 ? spec.real_elements() : spec.members * spec.member_elements();
  std::vector<float> values(static_cast<std::size_t>(real));
  checkpoint.read(*stored, spec.canonical.first, real, values.data());
  std::vector<double> all(values.begin(), values.end());
  all.resize(static_cast<std::size_t>(spec.members * spec.member_elements()), 3.0);  // padding must not matter
  return all;
}

/// Greatest difference between the logits of a checkpoint's model and the golden ones, divided by the greatest logit.
double logits_error(const Checkpoint& checkpoint, const json& golden) {
  Problems problems;
  RunConfig config = parse_deck(checkpoint.deck(), "deck.yaml", {}, problems).config;
  problems.raise();
  config.precision.compute = Compute::fp32;
  const auto sequences = std::ssize(golden.at("tokens"));
  TinyGpt gpt(GptShape::from(config), sequences);
  for (ParamId id : gpt.params.ids()) gpt.params.set(id, weight(checkpoint, gpt.registry[id]));
  std::vector<std::int32_t> ids;
  for (const json& row : golden.at("tokens")) ids.insert(ids.end(), row.begin(), row.end());
  gpt.batch.ids = on_device(gpt.device, ids);
  double error = 0, greatest = 0;
  for (std::int64_t s = 0; s < sequences; ++s)
    for (std::int64_t t = 0; t < config.model.seq_len; ++t) {
      const std::vector<double> wanted = golden.at("logits").at(s).at(t), found = gpt.next_logits(s, t);
      if (wanted.size() != found.size() || wanted.empty()) return NAN;
      for (std::size_t v = 0; v < wanted.size(); ++v) {
        test::keep_worst(error, std::abs(wanted[v] - found[v]));
        greatest = std::max(greatest, std::abs(wanted[v]));
      }
    }
  return error / greatest;
}

class HfGoldens : public testing::TestWithParam<const char*> {
 protected:
  TemporaryFolder folder;
  fs::path golden = golden_folder(GetParam()), checkpoint = folder.path() / "checkpoint";
};
INSTANTIATE_TEST_SUITE_P(Models, HfGoldens,
                         testing::Values("gpt2", "llama", "mixtral", "gpt2_fp16", "mistral", "llama3", "qwen2",
                                         "qwen3", "qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "glm4_moe_alone",
                                         "dots1"),
                         [](const auto& model) { return model.param; });

TEST_P(HfGoldens, OurForwardGivesTransformersLogits) {
  const json wanted = json::parse(read_file(golden / "golden.json"));
  ConvertOptions options;
  options.block_elements = 100;  // every tensor takes several pieces
  options.experts = ExpertWeights::discrete;
  const ConvertReport report = convert(golden, checkpoint, options);
  const Checkpoint made(checkpoint);
  EXPECT_EQ(made.verify(), std::vector<std::string>{});
  EXPECT_EQ(made.manifest().content_digest, report.content_digest);
  EXPECT_EQ(made.manifest().counters, StateCounters({.seed = RunConfig{}.run.seed, .rules = fresh_adamw_counters()}));
  EXPECT_LT(logits_error(made, wanted), tolerances::fp32_logits);
}

TEST_P(HfGoldens, OutAgainIsWhatCameIn) {
  convert(golden, checkpoint);
  ConvertOptions options = to_safetensors();
  options.block_elements = 77;
  options.shard_bytes = 9000;
  convert(checkpoint, folder.path() / "out", options);
  EXPECT_EQ(content_of(folder.path() / "out"), content_of(golden));
  const ForeignModel before = read_hf_config(golden / hf_config_file),
                     after = read_hf_config(folder.path() / "out" / hf_config_file);
  // A Mistral without attention windows is a Llama, and dots.llm1 a GLM 4.5 whose heads turn whole.
  EXPECT_EQ(before.family == Family::mistral ? Family::llama
            : before.family == Family::dots1 ? Family::glm4_moe
                                             : before.family,
            after.family);
  EXPECT_EQ(before.config.model, after.config.model);

  // The index knows every tensor, and no file is larger than it may be.
  const json index = json::parse(read_file(folder.path() / "out" / hf_index_file));
  EXPECT_EQ(index.at("weight_map").size(), content_of(golden).size());
  std::int64_t files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path() / "out")) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    EXPECT_LT(entry.file_size(), 9000u + 4096u) << entry.path();
  }
  EXPECT_GT(files, 3);
  EXPECT_FALSE(fs::exists(folder.path() / "out" / hf_single_file));

  // From folder to folder, and in one file.
  convert(folder.path() / "out", folder.path() / "whole", to_safetensors());
  EXPECT_EQ(content_of(folder.path() / "whole"), content_of(golden));
  EXPECT_TRUE(fs::exists(folder.path() / "whole" / hf_single_file));
}

TEST_P(HfGoldens, ExpertLayoutsHaveOneDigest) {
  const ConvertReport single = convert(golden, checkpoint);
  ConvertOptions options;
  options.experts = ExpertWeights::discrete;
  const ConvertReport discrete = convert(checkpoint, folder.path() / "discrete", options);
  EXPECT_EQ(discrete.content_digest, single.content_digest);
  EXPECT_EQ(Checkpoint(folder.path() / "discrete").manifest().experts, ExpertWeights::discrete);
  const ConvertReport kept = convert(folder.path() / "discrete", folder.path() / "kept");
  EXPECT_EQ(kept.content_digest, single.content_digest);
  EXPECT_EQ(Checkpoint(folder.path() / "kept").manifest().experts, ExpertWeights::discrete);
  EXPECT_EQ(read_file(folder.path() / "kept" / "deck.yaml"), read_file(checkpoint / "deck.yaml"));
}

TEST_P(HfGoldens, Bf16IsTheRoundedModelOnEveryWay) {
  const std::map<std::string, Content> wanted = rounded(content_of(golden));
  ConvertOptions narrow = to_safetensors();
  narrow.type = DType::bf16;
  convert(golden, folder.path() / "out", narrow);
  EXPECT_EQ(content_of(folder.path() / "out"), wanted);

  ConvertOptions stored;
  stored.type = DType::bf16;
  convert(golden, checkpoint, stored);
  const Checkpoint made(checkpoint);
  EXPECT_EQ(made.verify(), std::vector<std::string>{});
  for (const StoredTensor& tensor : made.tensors())
    EXPECT_EQ(tensor.type, stays_wide(tensor.path()) ? DType::f32 : DType::bf16) << tensor.path();
  convert(checkpoint, folder.path() / "again", to_safetensors());  // in the types as stored
  EXPECT_EQ(content_of(folder.path() / "again"), wanted);

  // Converted to fp32 it is a master again, on either way.
  const ConvertReport wide = convert(checkpoint, folder.path() / "wide");
  const ConvertReport direct = convert(folder.path() / "out", folder.path() / "direct");
  EXPECT_EQ(wide.content_digest, direct.content_digest);
  const Checkpoint widened(folder.path() / "wide");
  for (const StoredTensor& tensor : widened.tensors()) EXPECT_EQ(tensor.type, DType::f32);
}

/// Dense models whose feed-forward layers have no biases.
class Upcycled : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Upcycled, testing::Values("llama", "llama3", "mistral", "qwen2", "qwen3"),
                         [](const auto& model) { return model.param; });

TEST_P(Upcycled, IsTheDenseModel) {
  const TemporaryFolder folder;
  const fs::path golden = golden_folder(GetParam());
  const json wanted = json::parse(read_file(golden / "golden.json"));
  convert(golden, folder.path() / "dense");
  for (const Upcycling how : {Upcycling{4, 2}, Upcycling{5, 1, 1, 1, 7}, Upcycling{3, 3, 0, 2}}) {
    ConvertOptions options;
    options.upcycling = how;
    options.block_elements = 100;  // pieces end within an expert and between two
    const fs::path made = folder.path() / "mixture", direct = folder.path() / "direct";
    const ConvertReport report = convert(folder.path() / "dense", made, options);
    const Checkpoint mixture(made);
    EXPECT_EQ(mixture.verify(), std::vector<std::string>{});
    EXPECT_LT(logits_error(mixture, wanted), tolerances::fp32_logits);
    EXPECT_EQ(convert(golden, direct, options).content_digest, report.content_digest);
    Problems problems;
    const RunConfig config = parse_deck(mixture.deck(), "deck.yaml", {}, problems).config;
    EXPECT_TRUE(problems.empty());
    EXPECT_EQ(config.model.moe->experts, how.experts);
    EXPECT_EQ(config.model.moe->top_k, how.top_k);
    TinyGpt gpt(GptShape::from(config), 1);
    for (ParamId id : gpt.params.ids()) {
      const ParamSpec& spec = gpt.registry[id];
      if (spec.role != Role::router) continue;
      const Tensor drawn = gpt.device.allocate(Category::staging, DType::f32, spec.canonical.shape);
      fill_normal(gpt.device.compute(), drawn, random_key(how.seed, "init", spec.canonical.name, 0), 0,
                  spec.start.deviation);
      EXPECT_EQ(weight(mixture, spec), download_real(gpt.device, drawn)) << spec.name;
    }
    fs::remove_all(made);
    fs::remove_all(direct);
  }
}

TEST(Upcycling, RefusesWhatIsNoMixture) {
  const TemporaryFolder folder;
  const auto refuses = [&](const char* model, const Upcycling& how, Exit code, const std::string& word) {
    ConvertOptions options;
    options.upcycling = how;
    try {
      convert(golden_folder(model), folder.path() / "out", options);
      ADD_FAILURE() << model;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
    EXPECT_FALSE(fs::exists(folder.path() / "out"));
  };
  refuses("mixtral", {4, 2}, Exit::file, "model.moe: ");
  refuses("gpt2", {4, 2}, Exit::file, "model.bias: ");
  refuses("llama", {4, 5}, Exit::usage, "model.moe.top_k: 5 of 4 experts");
  refuses("llama", {4, 2, 2}, Exit::usage, "model.moe.first_dense: ");
  EXPECT_EQ(read_upcycling("experts=8,top_k=2,seed=3,every=2,first_dense=1").first_dense, 1);
  for (const char* text : {"", "experts=8", "experts=0,top_k=1", "experts=8,top_k=x", "experts=8,top_k=2,ffn=3", "8,2"})
    EXPECT_THROW(read_upcycling(text), Error) << text;
}

}  // namespace
}  // namespace tessera::test
