#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "kernels/base/error.hpp"

namespace tessera {

/// Reads a Hugging Face config.json key by key. Absent keys get transformers' defaults. Collects all complaints for
/// finish().
class HfConfigReader {
 public:
  using Json = nlohmann::ordered_json;

  explicit HfConfigReader(const std::filesystem::path& path);

  void refuse(const std::string& key, const std::string& why);
  bool has(const std::string& key);
  /// Whether the key is present with the value null, which differs from an absent key.
  bool says_null(const std::string& key);
  /// A whole number of `least` or more.
  std::int64_t size(const std::string& key, std::int64_t otherwise, std::int64_t least = 1);
  double number(const std::string& key, double otherwise);
  /// Reads a norm's epsilon, which is added to a mean square.
  double small(const std::string& key, double otherwise);
  bool truth(const std::string& key, bool otherwise);
  /// Complains unless the key has one of the `allowed` values; an absent key has the value `otherwise`.
  void expect(const std::string& key, const Json& otherwise, const std::vector<Json>& allowed);
  const Json& operator[](const std::string& key) { return json_[key]; }
  /// Adds what a user should know of a model that is taken.
  void tell(const std::string& what) { told_ += (told_.empty() ? "" : "; ") + what; }

  /// Throws Error{file} with all complaints, and with the keys that nothing has read and that may matter. Returns what
  /// a user should know, as one line, or nothing.
  std::string finish();

 private:
  std::filesystem::path path_;
  Json json_;
  std::set<std::string> seen_;
  std::string told_;
  Problems problems_;
};

}  // namespace tessera
