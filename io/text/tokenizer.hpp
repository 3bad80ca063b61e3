#pragma once
#include <filesystem>
#include <functional>
#include <unordered_map>

#include "io/text/added_tokens.hpp"
#include "io/text/byte_pairs.hpp"
#include "io/text/encoding.hpp"
#include "io/text/words.hpp"

namespace tessera {

/// Makes one text of another before words are sought.
using Normalizer = std::function<std::string(std::string_view)>;

/// The token by which a tokenizer.json ends a document: the first of "<|endoftext|>", "<|end_of_text|>" and "</s>"
/// that it has. prepare.py chooses in the same order.
struct EndOfText {
  std::int32_t id;
  std::string name;
};
std::optional<EndOfText> end_of_text_in(const std::string& tokenizer_json);

/// Tokenizer from a tokenizer.json of Hugging Face's `tokenizers`: byte-level BPE (GPT-2, Llama 3, Qwen) with its
/// normalizers, added tokens and pre-tokenizers. It has the tokens that a template puts around a text. encode() and
/// bytes_of() give the same results as that library without truncation and padding, which a file may ask for.
class Tokenizer final : public TextEncoding {
 public:
  /// Throws Error{file} that lists all parts of an unsupported kind: model, normalizers and others.
  explicit Tokenizer(const std::filesystem::path& path);
  /// The same from the file's text; errors call it `name`.
  Tokenizer(std::string text, const std::string& name);

  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string bytes_of(std::int32_t token) const override;
  std::optional<std::int32_t> end_of_text() const override { return end_of_text_; }

  /// The largest id + 1.
  std::int64_t vocabulary() const { return vocabulary_; }
  /// The whole file.
  const std::string& text() const { return text_; }

 private:
  friend class TokenizerReader;
  std::string normalize(std::string_view text) const;
  void encode_words(std::string_view text, std::vector<std::int32_t>& ids) const;

  std::string text_;
  BytePairs pairs_;
  std::vector<Normalizer> normalizers_;
  Words words_;
  AddedTokens raw_, normalized_;  ///< found before and after the normalizers
  std::vector<std::int32_t> before_, after_;
  std::unordered_map<std::int32_t, std::string> bytes_;
  std::optional<std::int32_t> end_of_text_;
  std::int64_t vocabulary_ = 0;
};

}  // namespace tessera
