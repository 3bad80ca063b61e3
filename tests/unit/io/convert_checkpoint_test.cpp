#include "io/convert/convert_checkpoint.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/checkpoint/reader.hpp"
#include "io/convert/hf_config.hpp"
#include "io/convert/hf_folder.hpp"
#include "io/convert/safetensors.hpp"
#include "tests/support/portable_bits.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/temporary_folder.hpp"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

ModelConfig llama_of(std::int64_t layers, std::int64_t hidden) {
  RunConfig config;
  config.model.layers = layers;
  config.model.hidden = hidden;
  config.model.heads = 4;
  config.model.kv_heads = std::int64_t{2};
  config.model.seq_len = 16;
  config.model.norm = Norm::rms;
  config.model.position = Position::rotary;
  config.model.activation = Activation::swiglu;
  config.model.vocab = std::int64_t{300};
  derive(config);
  return config.model;
}
ModelConfig gpt2_of(std::int64_t layers, std::int64_t hidden) {
  RunConfig config;
  config.model.layers = layers;
  config.model.hidden = hidden;
  config.model.heads = 4;
  config.model.seq_len = 16;
  config.model.vocab = std::int64_t{300};
  config.model.tied_head = true;
  derive(config);
  return config.model;
}
ModelConfig mixtral_of(std::int64_t layers, std::int64_t hidden) {
  RunConfig config;
  config.model = llama_of(layers, hidden);
  config.model.moe = MoeConfig{};
  config.model.moe->experts = 3;
  config.model.moe->top_k = 2;
  derive(config);
  return config.model;
}

/// A Hugging Face folder as other programs write it; a tensor of up to 2^20 elements has distinct small values.
fs::path hf_folder(const fs::path& path, const ModelConfig& model) {
  ModelFacts facts;
  facts.model = model;
  facts.tensors = canonical_weights(model);
  const auto writer = write_hf_folder(path, facts, std::int64_t{1} << 40);
  std::vector<float> values(1 << 16);
  for (std::size_t i = 0; i < facts.tensors.size(); ++i)
    for (std::int64_t first = 0, all = facts.tensors[i].shape.elements(); first < all; first += std::ssize(values)) {
      const std::int64_t count = std::min<std::int64_t>(std::ssize(values), all - first);
      for (std::int64_t j = 0; j < count; ++j)
        values[static_cast<std::size_t>(j)] = static_cast<float>((first + j + 1) % (1 << 20)) * 0x1p-20f;
      writer->write(i, first, count, values.data());
    }
  writer->commit();
  return path;
}

class Convert : public testing::Test {
 protected:
  ConvertReport convert(const fs::path& from, const fs::path& to, ConvertOptions options = {}) {
    options.from = from;
    options.to = to;
    return convert_checkpoint(options);
  }
  fs::path at(const std::string& name) const { return folder_.path() / name; }

  /// Expects that a conversion to `to` is refused with this code and message, and leaves nothing.
  void refuses(const fs::path& from, const fs::path& to, Exit code, const std::vector<std::string>& words,
               const ConvertOptions& options = {}) {
    const std::vector<std::string> before = listing();
    try {
      convert(from, to, options);
      ADD_FAILURE() << from << " was converted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      for (const std::string& word : words)
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word << " is not in: " << error.what();
    }
    EXPECT_EQ(listing(), before);
  }
  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path()))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
  static void flip(const fs::path& file, std::int64_t offset) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(offset);
    const char byte = static_cast<char>(stream.get());
    stream.seekp(offset);
    stream.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(stream.good());
  }

  TemporaryFolder folder_;
};

TEST_F(Convert, DestinationsThatCannotBe) {
  const fs::path source = hf_folder(at("hf"), llama_of(1, 32));
  convert(source, at("taken"));
  refuses(source, at("taken"), Exit::file, {"taken: exists already"});
  refuses(source, at("taken/"), Exit::file, {"exists already"});
  folder_.write("file", "text");
  refuses(source, at("file"), Exit::file, {"file: exists already"});
  fs::create_symlink("nowhere", at("link"));
  refuses(source, at("link"), Exit::file, {"link: exists already"});
  refuses(source, at("nowhere/below"), Exit::environment, {"nowhere/below: cannot be made"});
  refuses(source, at("file/below"), Exit::environment, {"cannot be made"});
  const WithoutPrivileges bound;
  refuses(source, at("elsewhere"), Exit::environment, {"elsewhere: cannot be made: Permission denied"});
}

TEST_F(Convert, WhatAKilledOneLeftIsRemovedAndNoMore) {
  const fs::path source = hf_folder(at("hf"), llama_of(1, 32));
  folder_.write("out.tmp.0123abcd/model.h5", "half of it");
  const std::vector<std::string> others = {"out.tmp.0123abcd0", "out.tmp.0123ABCD", "out.tmp.notes",
                                           "other.tmp.0123abcd"};
  for (const std::string& name : others) folder_.write(name + "/mine", "text");
  folder_.write("out.tmp.01234567", "a file");
  {
    PosixFile held(at("out.tmp.0123abcd"), PosixFile::Mode::read);
    EXPECT_EQ(held.lock(), PosixFile::Lock::taken);
    refuses(source, at("out"), Exit::environment, {"out: another process is making it, as", "out.tmp.0123abcd"});
  }
  EXPECT_TRUE(fs::exists(at("out.tmp.0123abcd/model.h5")));
  convert(source, at("out"));
  EXPECT_FALSE(fs::exists(at("out.tmp.0123abcd")));
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(at(name + "/mine"))) << name;
  EXPECT_TRUE(fs::exists(at("out.tmp.01234567")));
}

TEST_F(Convert, WhatCannotBeOpenedIsLeftAlone) {
  const fs::path source = hf_folder(at("hf"), llama_of(1, 32));
  folder_.write("below/out.tmp.0123abcd/model.h5", "another user's");
  fs::permissions(at("below/out.tmp.0123abcd"), fs::perms::none);
  fs::permissions(at("below"), fs::perms(0777));
  {
    const WithoutPrivileges bound;
    convert(source, at("below/out"));
  }
  EXPECT_TRUE(fs::exists(at("below/out.tmp.0123abcd/model.h5")));
}

TEST_F(Convert, SourcesThatAreNone) {
  refuses(at("nothing"), at("out"), Exit::file, {"nothing: is neither a checkpoint nor a run directory"});
  fs::create_directory(at("empty"));
  refuses(at("empty"), at("out"), Exit::file, {"empty: holds no manifest.json"});
  folder_.write("torch/config.json", R"({"model_type": "gpt2"})");
  folder_.write("torch/pytorch_model.bin", "x");
  refuses(at("torch"), at("out"), Exit::file, {"torch: holds config.json, and neither model.safetensors nor"});
}

TEST_F(Convert, DamageIsNamedAndNothingIsLeft) {
  convert(hf_folder(at("hf"), mixtral_of(2, 32)), at("a"));
  const Checkpoint sound(at("a"));
  for (const StoredTensor& tensor : sound.tensors()) {
    const std::int64_t last = tensor.datasets.back().offset + tensor.datasets.back().count * 4 - 1;
    flip(at("a") / "model.h5", last);
    for (Target target : {Target::tessera, Target::safetensors}) {
      ConvertOptions options;
      options.target = target;
      refuses(at("a"), at("out"), Exit::file, {tensor.path() + " holds other bytes than were saved", "model.h5"},
              options);
    }
    flip(at("a") / "model.h5", last);
  }
  fs::resize_file(at("a") / "model.h5", 1000);
  refuses(at("a"), at("out"), Exit::file, {"model.h5", "truncated"});
}

TEST_F(Convert, HasTheSameDigestsOnEveryCpu) {
  convert(hf_folder(at("hf"), mixtral_of(2, 32)), at("fp32"));
  ConvertOptions narrow;
  narrow.type = DType::bf16;
  convert(at("fp32"), at("bf16"), narrow);
  for (const std::string name : {"fp32", "bf16"})
    expect_portable("content digest of a converted checkpoint " + name,
                    Checkpoint(at(name)).manifest().content_digest);
}

TEST_F(Convert, NumbersThatAreNoneAreRefused) {
  const fs::path source = hf_folder(at("hf"), gpt2_of(1, 32));
  const std::vector<SourceTensor> list = list_safetensors(source / hf_single_file);
  const auto found = std::ranges::find(list, "transformer.h.0.mlp.c_fc.weight", &SourceTensor::name);
  ASSERT_NE(found, list.end());
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    PosixFile(source / hf_single_file, PosixFile::Mode::write).write(found->offset + 44, &bad, sizeof bad);
    refuses(source, at("out"), Exit::numerical, {"/model/layers.0.mlp.up.weight", "not finite"});
  }
  // Finite in fp32 but not in bf16.
  const float large = 3.4e38f;
  PosixFile(source / hf_single_file, PosixFile::Mode::write).write(found->offset + 44, &large, sizeof large);
  convert(source, at("wide"));
  ConvertOptions narrow;
  narrow.type = DType::bf16;
  refuses(source, at("out"), Exit::numerical, {"/model/layers.0.mlp.up.weight", "not finite in bf16"}, narrow);
}

TEST_F(Convert, FoldersWhoseTensorsAreNotTheirModels) {
  const fs::path source = hf_folder(at("hf"), llama_of(2, 32));
  const std::string config = read_file(source / hf_config_file);
  const std::vector<SourceTensor> sound = list_safetensors(source / hf_single_file);
  const auto rewrite = [&](std::vector<SourceTensor> tensors) {
    const std::vector<char> zeros(1 << 20);
    SafetensorsWriter writer(source / hf_single_file, std::move(tensors));
    for (std::size_t i = 0; i < writer.tensors().size(); ++i)
      writer.write(i, 0, zeros.data(), writer.tensors()[i].shape.elements() * size_of(writer.tensors()[i].type));
    writer.finish();
  };
  std::vector<SourceTensor> changed = sound;
  std::erase_if(changed, [](const SourceTensor& t) { return t.name == "model.layers.1.self_attn.k_proj.weight"; });
  changed.push_back({"model.layers.1.self_attn.k_norm.weight", {8}, DType::f32, 0, ""});
  changed.front().shape = {7, 5};
  rewrite(changed);
  refuses(source, at("out"), Exit::file,
          {"missing: model.layers.1.self_attn.k_proj.weight", "extra: model.layers.1.self_attn.k_norm.weight",
           "shape: " + changed.front().name + " is [7,5]"});

  changed = sound;
  changed.back().type = DType::u8;
  rewrite(changed);
  refuses(source, at("out"), Exit::file, {"type: " + changed.back().name + " is u8"});

  // Redundant tensors may be present, and names may lack the prefix of the model without head.
  changed = sound;
  changed.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {4}, DType::f32, 0, ""});
  for (SourceTensor& t : changed)
    if (t.name == "model.norm.weight") t.name = "norm.weight";
  rewrite(changed);
  EXPECT_EQ(convert(source, at("sound")).tensors, std::ssize(canonical_weights(llama_of(2, 32))));

  fs::remove(source / hf_single_file);
  folder_.write("hf/" + std::string(hf_index_file),
                R"({"weight_map": {"lm_head.weight": "../elsewhere.safetensors"}})");
  refuses(source, at("out"), Exit::file, {hf_index_file, "lm_head.weight", "names no file of the folder"});
  folder_.write("hf/" + std::string(hf_index_file), R"({"weight_map": {"lm_head.weight": "gone.safetensors"}})");
  refuses(source, at("out"), Exit::file, {"gone.safetensors"});
  folder_.write("hf/" + std::string(hf_index_file), "[]");
  refuses(source, at("out"), Exit::file, {hf_index_file, "is no JSON object"});
}

TEST_F(Convert, ConfigurationsThatNoModelHereHas) {
  struct Row {
    const char* model;
    const char* key;
    json value;
    const char* named;  ///< a word of the message, besides the key
  };
  const Row rows[] = {{"llama", "rms_norm_eps", 0, "at least 1e-30"},
                      {"llama", "hidden_act", "gelu", "silu"},
                      {"llama", "attention_bias", true, "mlp_bias"},
                      {"llama", "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}, "original_max"},
                      {"llama", "rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}, "linear"},
                      {"llama", "rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}}, "rope_type"},
                      {"llama", "rope_theta", 5e5, "differs from rope_parameters.rope_theta"},
                      {"llama", "sliding_window", "wide", "no size"},
                      {"llama", "quantization_config", {{"bits", 4}}, "bits"},
                      {"llama", "num_hidden_layers", 0, "no size"},
                      {"llama", "hidden_size", "wide", "no size"},
                      {"llama", "num_key_value_heads", 3, "does not divide"},
                      {"llama", "tie_word_embeddings", 1, "neither true nor false"},
                      {"llama", "model_type", "gemma", "gemma"},
                      {"llama", "model_type", nullptr, "gpt2, llama, mistral, mixtral, qwen2, qwen3, qwen2_moe"},
                      {"llama", "model_type", nullptr, "qwen3_moe, olmoe, glm4_moe and dots1"},
                      {"mixtral", "layer_types", {"chunked_attention"}, "chunked_attention"},
                      {"mixtral", "num_experts_per_tok", 4, "4 of 3"},
                      {"mixtral", "shared_expert_intermediate_size", 64, "unknown here"},
                      {"gpt2", "activation_function", "relu", "gelu_new"},
                      {"gpt2", "scale_attn_by_inverse_layer_idx", true, "false"},
                      {"gpt2", "add_cross_attention", true, "false"},
                      {"gpt2", "scale_attn_weights", false, "true"},
                      {"gpt2", "n_head", 5, "divide"}};
  for (const char* model : {"llama", "mixtral", "gpt2"}) {
    SCOPED_TRACE(shown(model));
    const bool llama = model == std::string("llama"), gpt2 = model == std::string("gpt2");
    const fs::path source = hf_folder(at(model), llama ? llama_of(1, 32) : gpt2 ? gpt2_of(1, 32) : mixtral_of(1, 32));
    const json sound = json::parse(read_file(source / hf_config_file));
    for (const Row& row : rows) {
      if (model != std::string(row.model)) continue;
      json changed = sound;
      changed[row.key] = row.value;
      folder_.write(std::string(model) + "/config.json", changed.dump());
      const std::string named = row.key == std::string("num_experts_per_tok") ? "model.moe.top_k" : row.key;
      const bool sizes = named == "num_key_value_heads" || named == "n_head";
      refuses(source, at("out"), Exit::file, {"config.json: " + (sizes ? "model." : named), row.named});
    }
    // Absent keys get transformers' defaults, which may differ from the program's.
    json absent = sound;
    absent.erase("rms_norm_eps");
    folder_.write(std::string(model) + "/config.json", absent.dump());
    EXPECT_EQ(read_hf_config(source / hf_config_file).config.model.norm_eps, llama ? 1e-6 : 1e-5);
    folder_.write(std::string(model) + "/config.json", "no json");
    refuses(source, at("out"), Exit::file, {"config.json:1:1: is no JSON: 'no' is unexpected"});
  }
}

TEST(HfConfig, SaysWhatTransformers4Said) {
  const TemporaryFolder folder;
  const fs::path path =
      folder.write("config.json", R"({"model_type": "mixtral", "rope_theta": 5e5, "rope_scaling": null,
      "hidden_size": 64, "num_attention_heads": 8,
      "_name_or_path": "x", "torch_dtype": "bfloat16", "sliding_window": null})");
  const ForeignModel foreign = read_hf_config(path);
  EXPECT_EQ(foreign.family, Family::mixtral);
  const ModelConfig& model = foreign.config.model;
  EXPECT_EQ(model.rope_base, 5e5);
  EXPECT_EQ(model.head_dim, 8);
  EXPECT_EQ(model.kv_heads, 8);
  EXPECT_EQ(model.vocab, 32000);
  EXPECT_EQ(model.ffn, 14336);
  EXPECT_EQ(model.seq_len, 131072);
  EXPECT_EQ(model.bias, false);
  EXPECT_EQ(model.moe->experts, 8);
  EXPECT_EQ(model.moe->renormalize, true);
}

TEST(HfConfig, AWindowShortensSequencesOnlyWhereItIsUsed) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& type, const std::string& more) {
    return read_hf_config(folder.write("config.json", R"({"hidden_size": 64, "num_attention_heads": 8,
        "num_key_value_heads": 4, "max_position_embeddings": 32768, "model_type": ")" +
                                                          type + "\"" + more + "}"));
  };
  const ModelConfig model = read("qwen2", R"(, "sliding_window": 4096, "max_window_layers": 28)").config.model;
  EXPECT_TRUE(model.qkv_bias && !model.bias && !model.qk_norm);
  EXPECT_EQ(model.norm_eps, 1e-6);
  struct Row {
    const char *type, *more;
    std::int64_t length;
  };
  const Row rows[] = {
      {"qwen2", R"(, "sliding_window": 4096)", 32768},
      {"qwen2", R"(, "use_sliding_window": true, "sliding_window": 4096, "max_window_layers": 28)", 4096},
      {"qwen2", R"(, "use_sliding_window": true, "sliding_window": 4096, "max_window_layers": 32)", 32768},
      {"qwen3", R"(, "sliding_window": 77, "layer_types": ["full_attention", "sliding_attention"])", 77},
      {"qwen3", R"(, "sliding_window": 77, "layer_types": ["full_attention"])", 32768},
      {"qwen3", R"(, "use_sliding_window": false, "sliding_window": 77, "layer_types": ["sliding_attention"])", 32768},
      {"mistral", "", 4096},
      {"mistral", R"(, "sliding_window": null)", 32768},
      {"mistral", R"(, "sliding_window": 32767)", 32767},
      {"mistral", R"(, "sliding_window": 32768)", 32768},
      {"mixtral", "", 32768},
      {"mixtral", R"(, "sliding_window": 512)", 512},
      {"llama", R"(, "sliding_window": 512, "use_sliding_window": false)", 32768},
      {"llama", R"(, "sliding_window": 512)", 512}};
  for (const Row& row : rows) {
    const ForeignModel foreign = read(row.type, row.more);
    const bool shorter = row.length < 32768;
    EXPECT_EQ(foreign.config.model.seq_len, row.length) << row.type << row.more;
    EXPECT_EQ(foreign.window, shorter ? row.length : 0) << row.type << row.more;
    EXPECT_EQ(foreign.told.find("sliding_window is") != std::string::npos, shorter) << foreign.told;
  }
  EXPECT_THROW(read("qwen2", R"(, "layer_types": ["full_attention", "linear_attention"])"), Error);
}

// A file that is no JSON is named with line and column, wherever the mistake stands.
TEST(HfConfig, MistakesAreFoundByLineAndColumn) {
  const TemporaryFolder folder;
  for (const auto& [mistake, named] : {std::pair("NaN", "NaN is no number"), std::pair("-Infinity", "-Infinity is no"),
                                       std::pair("Infinity", "Infinity is no"), std::pair("True", "'True' is unexp"),
                                       std::pair("}", "'}' is unexpected"), std::pair("off", "'off' is unexpected")})
    for (int line = 1; line < 5; ++line) {
      std::string text = "{";
      for (int i = 1; i < line; ++i) text += "\n  \"key" + std::to_string(i) + "\": 1.5,";
      const std::size_t begin = text.rfind('\n') + 1;
      text += " \"rms_norm_eps\": ";
      const std::size_t column = text.size() - begin + 1;
      const fs::path path = folder.write("config.json", text + mistake + ", \"model_type\": \"llama\"}");
      try {
        read_hf_config(path);
        ADD_FAILURE() << text << mistake;
      } catch (const Error& error) {
        const std::string place = path.string() + ":" + std::to_string(line) + ":" + std::to_string(column) + ": ";
        EXPECT_TRUE(std::string(error.what()).starts_with(place)) << error.what() << " and not " << place;
        EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
      }
    }
}

TEST(HfConfig, BiasesInAllLinearLayersAreLlamasToo) {
  ModelConfig model = llama_of(1, 32);
  model.bias = true;
  const TemporaryFolder folder;
  const auto no_ids = nlohmann::ordered_json::object();
  const fs::path path = folder.write("config.json", hf_config_text(Family::llama, model, DType::f32, no_ids));
  EXPECT_EQ(read_hf_config(path).config.model, model);
  std::vector<std::string> names;
  for (const StateTensor& tensor : canonical_weights(model))
    for (const ForeignPiece& piece : pieces_in(Family::llama, model, tensor)) names.push_back(piece.name);
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
    EXPECT_EQ(std::ranges::count(names, "model.layers.0.self_attn." + std::string(name) + ".bias"), 1) << name;
  for (const char* name : {"gate_proj", "up_proj", "down_proj"})
    EXPECT_EQ(std::ranges::count(names, "model.layers.0.mlp." + std::string(name) + ".bias"), 1) << name;
}

TEST(HfFamily, KeysThatNoFamilyHasAreNamed) {
  const auto refusal = [](const ModelConfig& model) -> std::string {
    try {
      return std::string("fits ").append(name_of(family_of(model, "run/deck.yaml")));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Exit::file);
      return error.what();
    }
  };
  EXPECT_EQ(refusal(gpt2_of(1, 32)), "fits gpt2");
  EXPECT_EQ(refusal(llama_of(1, 32)), "fits llama");
  EXPECT_EQ(refusal(mixtral_of(1, 32)), "fits mixtral");
  const auto has = [&](ModelConfig model, const auto& change, const std::vector<std::string>& keys) {
    change(model);
    const std::string text = refusal(model);
    for (const std::string& key : keys)
      EXPECT_NE(text.find("run/deck.yaml: " + key + ": "), std::string::npos) << key << " is not in: " << text;
    EXPECT_EQ(std::ranges::count(text, '\n') + 1, std::ssize(keys)) << text;
  };
  has(gpt2_of(1, 32), [](ModelConfig& m) { m.position = Position::rotary; }, {"model.position"});
  has(gpt2_of(1, 32), [](ModelConfig& m) { m.activation = Activation::swiglu, m.kv_heads = std::int64_t{2}; },
      {"model.activation", "model.kv_heads"});
  has(gpt2_of(1, 32), [](ModelConfig& m) { m.head_dim = std::int64_t{6}, m.bias = false; },
      {"model.head_dim", "model.bias"});
  has(llama_of(1, 32), [](ModelConfig& m) { m.position = Position::learned, m.activation = Activation::gelu; },
      {"model.position", "model.activation"});
  has(mixtral_of(1, 32), [](ModelConfig& m) { m.norm = Norm::layer, m.bias = true, m.moe->renormalize = false; },
      {"model.norm", "model.bias", "model.moe.renormalize"});
}

/// Memory of this process in bytes: VmRSS resident now, VmHWM the peak so far.
std::int64_t size_of_process(const std::string& which) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(which + ":")) return std::stoll(line.substr(which.size() + 1)) * 1024;
  ADD_FAILURE() << "no " << which;
  return 0;
}
/// Resets the peak to the present size.
void forget_greatest_size() {
  std::ofstream("/proc/self/clear_refs") << "5";
  EXPECT_LT(size_of_process("VmHWM"), size_of_process("VmRSS") + (std::int64_t{1} << 20));
}

#ifdef __SANITIZE_ADDRESS__
constexpr bool freed_memory_is_kept = true;
#else
constexpr bool freed_memory_is_kept = false;
#endif

TEST_F(Convert, MemoryDoesNotDependOnTheModel) {
  if (freed_memory_is_kept) GTEST_SKIP() << "the address sanitizer keeps what was freed";
  struct Made {
    ModelConfig model;
    std::string name;
    std::int64_t bytes = 0, grown[3] = {};
  };
  // Small models first, so that memory that libraries keep is counted before.
  for (auto [small, large] : {std::pair{Made{mixtral_of(1, 128), "m"}, Made{mixtral_of(4, 256), "mm"}},
                              std::pair{Made{gpt2_of(1, 128), "g"}, Made{gpt2_of(5, 256), "gg"}}}) {
    for (Made* made : {&small, &large}) {
      const fs::path source = hf_folder(at(made->name), made->model);
      for (std::size_t way = 0; way < 3; ++way) {  // in, from layout to layout, and out
        ConvertOptions options;
        options.block_elements = 1 << 14;
        if (way == 1) options.experts = ExpertWeights::discrete;
        if (way == 2) options.target = Target::safetensors;
        const std::string from = made->name + std::string(way, '-');
        forget_greatest_size();
        const std::int64_t before = size_of_process("VmHWM");
        made->bytes = convert(at(from), at(from + "-"), options).bytes;
        made->grown[way] = size_of_process("VmHWM") - before;
      }
    }
    EXPECT_GT(large.bytes, 10 * small.bytes);
    for (std::size_t way = 0; way < 3; ++way) {
      EXPECT_LT(large.grown[way], small.grown[way] + (std::int64_t{2} << 20)) << large.name << " way " << way;
      EXPECT_LT(large.grown[way], large.bytes / 4) << large.name << " way " << way;
    }
  }
}

}  // namespace
}  // namespace tessera::test
