#include "io/text/kinship.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

/// A byte-level tokenizer of letters: a token a letter, a token a merge, then added ones.
Json tokenizer(std::mt19937& draw, int merges) {
  Json vocab = Json::object(), list = Json::array();
  std::vector<std::string> tokens;
  const auto add = [&](const std::string& token) {
    vocab[token] = vocab.size();
    tokens.push_back(token);
  };
  for (char c = 'a'; c <= 'z'; ++c) add(std::string(1, c));
  while (static_cast<int>(list.size()) < merges) {
    const std::string left = tokens[draw() % tokens.size()], right = tokens[draw() % tokens.size()];
    if (vocab.contains(left + right) || left.size() + right.size() > 12) continue;
    list.push_back(left + " " + right);
    add(left + right);
  }
  const Json end = {{"id", vocab.size()}, {"content", "<|end|>"}, {"special", true}, {"normalized", false}};
  return {{"version", "1.0"},
          {"added_tokens", Json::array({end})},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

TEST(Kinship, WhatChangesNoIdIsNoDifference) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 draw(seed);
    const Json base = tokenizer(draw, 20);
    Json same = base;
    const auto sometimes = [&](const auto& change) {
      if (draw() % 2 == 0) change();
    };
    sometimes([&] { same["decoder"] = nullptr; });
    sometimes([&] { same["truncation"] = {{"max_length", 3}}; });
    sometimes([&] { same["padding"] = {{"strategy", "BatchLongest"}}; });
    sometimes([&] { same["model"]["dropout"] = 0.0; });
    sometimes([&] { same["model"]["continuing_subword_prefix"] = ""; });
    sometimes([&] { same["model"]["ignore_merges"] = false; });
    sometimes([&] { same["added_tokens"][0]["lstrip"] = false; });
    sometimes([&] { same["post_processor"] = {{"type", "ByteLevel"}, {"trim_offsets", true}}; });
    sometimes([&] { same["pre_tokenizer"].erase("use_regex"); });
    sometimes([&] {
      same["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({same["pre_tokenizer"]})}};
    });
    sometimes([&] {
      for (Json& merge : same["model"]["merges"]) {
        const std::string text = merge;
        merge = Json::array({text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)});
      }
    });
    const std::string text = draw() % 2 ? nlohmann::json(same).dump() : same.dump(1);
    const Kinship kinship = kinship_of(base.dump(), text);
    EXPECT_EQ(kinship.conflict, "") << text;
    EXPECT_EQ(kinship.told, "") << text;
  }
}

TEST(Kinship, OtherTokensOrCutsAreAConflict) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 draw(seed);
    const Json base = tokenizer(draw, 20);
    Json other = base;
    Json& merges = other["model"]["merges"];
    Json& vocab = other["model"]["vocab"];
    switch (seed % 7) {
      case 0: other = tokenizer(draw, 20); break;  // trained on another text
      case 1: std::swap(merges[draw() % 10], merges[10 + draw() % 10]); break;
      case 2: {
        const std::string one(1, static_cast<char>('a' + draw() % 26));
        const std::string two(1, one == "z" ? 'a' : static_cast<char>(one[0] + 1));
        std::swap(vocab[one], vocab[two]);
        break;
      }
      case 3: other["normalizer"] = {{"type", "NFC"}}; break;
      case 4: other["pre_tokenizer"]["add_prefix_space"] = true; break;
      case 5: other["added_tokens"][0]["content"] = "</s>"; break;
      default: merges.erase(merges.size() - 1);
    }
    EXPECT_NE(kinship_of(base.dump(), other.dump()).conflict, "") << seed;
    EXPECT_NE(kinship_of(other.dump(), base.dump()).conflict + kinship_of(other.dump(), base.dump()).told, "") << seed;
  }
}

TEST(Kinship, FurtherTokensAndTemplatesAreTold) {
  std::mt19937 draw(1);
  const Json base = tokenizer(draw, 20);
  Json more = base;
  const std::int64_t next = base["added_tokens"][0]["id"].get<std::int64_t>() + 1;
  for (int i = 0; i < 5; ++i)
    more["added_tokens"].push_back({{"id", next + i}, {"content", "<|" + std::to_string(i) + "|>"}});
  Kinship kinship = kinship_of(base.dump(), more.dump());
  EXPECT_EQ(kinship.conflict, "");
  EXPECT_NE(kinship.told.find("5 tokens more than the weights were trained with: \"<|0|>\" (47)"), std::string::npos)
      << kinship.told;
  EXPECT_EQ(kinship_of(more.dump(), base.dump()).conflict, "");
  EXPECT_NE(kinship_of(more.dump(), base.dump()).told.find("5 tokens fewer"), std::string::npos);
  Json around = base;
  around["post_processor"] = {{"type", "TemplateProcessing"}, {"single", Json::array()}};
  kinship = kinship_of(base.dump(), around.dump());
  EXPECT_EQ(kinship.conflict, "");
  EXPECT_EQ(kinship.told, "another template around a text");
}

TEST(Kinship, AnyKindIsComparedAndDamageIsAConflict) {
  std::mt19937 draw(1);
  const Json base = tokenizer(draw, 5);
  Json sentence = base;
  const Json pieces = Json::array({Json::array({"<unk>", 0.0}), Json::array({"a", -1.0})});
  sentence["model"] = {{"type", "Unigram"}, {"vocab", pieces}};
  EXPECT_NE(kinship_of(sentence.dump(), base.dump()).conflict.find("Unigram there, and BPE here"), std::string::npos);
  for (const char* damaged : {"", "no JSON", "[]", "{}", R"({"model": {"vocab": {"a": "b"}}})"}) {
    EXPECT_NE(kinship_of(damaged, base.dump()).conflict.find("theirs cannot be read"), std::string::npos) << damaged;
    EXPECT_NE(kinship_of(base.dump(), damaged).conflict.find("this run's cannot be read"), std::string::npos);
  }
}

}  // namespace
}  // namespace tessera
