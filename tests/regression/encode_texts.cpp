// Encodes texts for tokenizers_test.py: a line of JSON {"tokenizer": text, "texts": [...]} in, a line out:
// {"refused": why} or {"texts": [{"ids": [...], "bytes": [...]}, or {"refused": why}, ...]}.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "io/text/tokenizer.hpp"
#include "kernels/base/error.hpp"

namespace {

using Json = nlohmann::json;

Json encoded(const tessera::Tokenizer& tokenizer, const std::string& text) {
  try {
    const std::vector<std::int32_t> ids = tokenizer.encode(text);
    Json bytes = Json::array();
    for (const std::int32_t id : ids)
      for (const char byte : tokenizer.bytes_of(id)) bytes.push_back(static_cast<unsigned char>(byte));
    return {{"ids", ids}, {"bytes", bytes}};
  } catch (const tessera::Error& error) {
    return {{"refused", error.what()}};
  }
}

Json answer(const Json& asked) {
  try {
    const tessera::Tokenizer tokenizer(asked.at("tokenizer").get<std::string>(), "tokenizer.json");
    Json texts = Json::array();
    for (const Json& text : asked.at("texts")) texts.push_back(encoded(tokenizer, text.get<std::string>()));
    return {{"texts", texts}};
  } catch (const tessera::Error& error) {
    return {{"refused", error.what()}};
  }
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) std::cout << answer(Json::parse(line)).dump() << std::endl;
}
