#pragma once
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::test {

/// The golden values of one model, from tests/oracle/model_goldens.py.
struct Golden {
  nlohmann::json index;
  std::vector<float> numbers;

  std::vector<double> part(const nlohmann::json& where) const {
    std::int64_t n = 1;
    for (std::int64_t d : where.at("shape")) n *= d;
    const auto first = numbers.begin() + where.at("offset").get<std::int64_t>();
    return {first, first + n};
  }
  std::string seed() const { return std::to_string(index.at("seed").get<int>()); }
};

inline constexpr const char* golden_models[] = {"gpt2",     "llama",     "mixtral", "switch",
                                                "glm4_moe", "qwen2_moe", "capacity"};

inline Golden read_golden(const std::string& name) {
  const auto folder = std::filesystem::path(__FILE__).parent_path() / "../oracle/goldens";
  std::ifstream text(folder / (name + ".json")), bytes(folder / (name + ".bin"), std::ios::binary);
  Golden golden{nlohmann::json::parse(text), {}};
  for (float f; bytes.read(reinterpret_cast<char*>(&f), sizeof f);) golden.numbers.push_back(f);
  return golden;
}

}  // namespace tessera::test
