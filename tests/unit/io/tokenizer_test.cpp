#include "io/text/tokenizer.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/checkpoint/storage.hpp"
#include "io/files/text_file.hpp"
#include "kernels/base/error.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;

std::filesystem::path golden_folder(const std::string& name) {
  return std::filesystem::path(__FILE__).parent_path() / "../../oracle/tokenizers" / name;
}

#define NEEDS_ICU() \
  if (unicode_library().empty()) GTEST_SKIP() << "built without ICU"

class Tokenizers : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Goldens, Tokenizers, testing::Values("gpt2", "llama3", "qwen2"),
                         [](const auto& name) { return name.param; });

TEST_P(Tokenizers, EncodeAndDecodeAsTheLibraryDoes) {
  NEEDS_ICU();
  const Tokenizer tokenizer(golden_folder(GetParam()) / tokenizer_file);
  const Json golden = Json::parse(read_text_file(golden_folder(GetParam()) / "golden.json"));
  EXPECT_EQ(tokenizer.vocabulary(), golden.at("vocabulary"));
  EXPECT_EQ(tokenizer.bytes_of(tokenizer.end_of_text().value()), "");
  ASSERT_GT(golden.at("cases").size(), 30u);
  for (const Json& one : golden.at("cases")) {
    const auto ids = tokenizer.encode(one.at("text").get<std::string>());
    EXPECT_EQ(Json(ids), one.at("ids")) << one.at("text");
    std::string bytes;
    for (const std::int32_t id : ids) bytes += tokenizer.bytes_of(id);
    EXPECT_EQ(bytes, one.at("decoded").get<std::string>());
  }
}

TEST(Tokenizers, ManySpacesTakeNoQuadraticTime) {
  NEEDS_ICU();
  const Tokenizer tokenizer(golden_folder("gpt2") / tokenizer_file);
  EXPECT_GT(tokenizer.encode(std::string(1 << 17, 'a')).size(), 1u << 14);
}

std::string reason(const Json& file) {
  try {
    const Tokenizer tokenizer(file.dump(), "tokenizer.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::file);
    return error.what();
  }
  return "";
}

TEST(Tokenizers, WhatIsNotSupportedIsNamed) {
  NEEDS_ICU();
  const Json sound = Json::parse(read_text_file(golden_folder("llama3") / tokenizer_file));
  EXPECT_EQ(reason(sound), "");
  const auto with = [&](const char* pointer, const Json& value) {
    Json file = sound;
    file[Json::json_pointer(pointer)] = value;
    return reason(file);
  };
  const auto names = [](const std::string& text, const char* what) { return text.find(what) != std::string::npos; };
  EXPECT_TRUE(names(with("/model/type", "WordPiece"), "model: WordPiece is not supported"));
  EXPECT_TRUE(names(with("/model/type", "Unigram"), "model: Unigram is not supported"));
  EXPECT_TRUE(names(with("/model/byte_fallback", true), "model.byte_fallback"));
  EXPECT_TRUE(names(with("/model/dropout", 0.1), "model.dropout: 0.1"));
  EXPECT_TRUE(names(with("/model/merges", Json::array({"zq qz"})), "model.merges: \"zq qz\""));
  EXPECT_TRUE(names(with("/normalizer", {{"type", "StripAccents"}}), "normalizer: StripAccents"));
  EXPECT_TRUE(names(with("/pre_tokenizer", {{"type", "Metaspace"}}), "pre_tokenizer: Metaspace"));
  EXPECT_TRUE(names(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a"), "(a"));
  EXPECT_TRUE(names(with("/pre_tokenizer/pretokenizers/0/behavior", "Merged"), "\"Merged\" is no behavior"));
  EXPECT_TRUE(names(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{N}{1,3}+"), "{1,3}+"));
  EXPECT_TRUE(names(with("/post_processor", {{"type", "Other"}}), "post_processor: Other"));
  // What changes nothing is taken.
  EXPECT_EQ(with("/model/dropout", 0.0), "");
  EXPECT_EQ(with("/model/unk_token", "<unk>"), "");
  // Everything at once, and files that are none.
  Json two = sound;
  two["normalizer"] = {{"type", "StripAccents"}};
  two["decoder"] = {{"type", "WordPiece"}};
  EXPECT_TRUE(names(reason(two), "StripAccents") && names(reason(two), "decoder: WordPiece"));
  EXPECT_TRUE(names(reason(Json::array()), "is no tokenizer.json"));
  EXPECT_THROW(Tokenizer("{\"model\": ", "broken"), Error);
  EXPECT_THROW(Tokenizer(std::filesystem::path("nowhere")), Error);
}

TEST(Tokenizers, SeveralNamesOfTheEndHaveAnOrder) {
  const auto end_of = [](const Json& added) { return end_of_text_in(Json{{"added_tokens", added}}.dump()); };
  const Json first{{"content", "</s>"}, {"id", 7}}, second{{"content", "<|endoftext|>"}, {"id", 3}};
  EXPECT_EQ(end_of({first, second})->id, 3);
  EXPECT_EQ(end_of({second, first})->id, 3);
  EXPECT_EQ(end_of({first, Json{{"content", "other"}, {"id", 8}}})->name, "</s>");
  EXPECT_FALSE(end_of(Json::array()));
}

TEST(Tokenizers, TextThatIsNoneIsRefusedByPlace) {
  NEEDS_ICU();
  const Tokenizer tokenizer(golden_folder("gpt2") / tokenizer_file);
  try {
    tokenizer.encode("abc\xC3(");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("from its byte 3 on"), std::string::npos) << error.what();
  }
}

TEST(Tokenizers, BytesAreTokens) {
  const ByteEncoding bytes;
  EXPECT_EQ(bytes.encode("a\xFF"), (std::vector<std::int32_t>{97, 255}));
  EXPECT_EQ(bytes.bytes_of(255), "\xFF");
}

}  // namespace
}  // namespace tessera
