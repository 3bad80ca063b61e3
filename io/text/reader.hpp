#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/text/tokenizer.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

/// Reads the parts of a tokenizer.json into a Tokenizer and collects all complaints.
class TokenizerReader {
 public:
  TokenizerReader(Tokenizer& into, const std::string& name) : into_(into), name_(name) {}
  /// Throws Error{file} with all complaints.
  void read();

 private:
  using Json = nlohmann::json;

  void refuse(const std::string& what);
  /// Calls `take` for a part of the file, or for each member if the part is a Sequence, of Sequences too.
  void each(const Json& part, const char* members, void (TokenizerReader::*take)(const Json&));
  void each_of(const Json& json, const char* key, const char* members, void (TokenizerReader::*take)(const Json&));

  void read_model(const Json& model);
  void read_vocabulary(const Json& model);
  void refuse_unknown_bytes(const Json& model);
  void read_added(const Json& tokens);
  void check_added(const Json& token);
  void read_normalizer(const Json& part);
  void read_words(const Json& part);
  void read_split(const Json& part);
  void read_template(const Json& part);
  void read_decoder(const Json& part);
  void add_cut(const std::string& expression, Cutting cutting, bool inverted = false);
  std::optional<std::string> expression_of(const Json& pattern, const char* where);
  std::int32_t id_of(const Json& id, const char* where);
  std::int32_t token_of(const Json& id);
  void keep(const std::string& token, std::int32_t id);

  Tokenizer& into_;
  std::string name_;
  std::map<std::string, std::int32_t> ids_;  ///< of all tokens
  std::int32_t next_added_ = 0;              ///< the id of the next added token that is no token of the model
  int decoders_ = 0, templates_ = 0;
  Problems problems_;
};

}  // namespace tessera
