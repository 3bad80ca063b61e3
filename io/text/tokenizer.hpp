#pragma once
#include <filesystem>
#include <unordered_map>

#include "io/text/byte_pairs.hpp"
#include "io/text/encoding.hpp"
#include "io/text/splitting.hpp"

namespace tessera {

/// The token by which a tokenizer.json ends a document: "<|endoftext|>", "<|end_of_text|>" or "</s>".
struct EndOfText {
  std::int32_t id;
  std::string name;
};
std::optional<EndOfText> end_of_text_in(const std::string& tokenizer_json);

/// Tokenizer from a tokenizer.json of Hugging Face's `tokenizers`: byte-level BPE (GPT-2, Llama 3, Qwen) with its
/// pattern of words, NFC, added tokens, and the tokens that a template puts around a text. encode() and bytes_of() give
/// the same results as that library.
class Tokenizer final : public TextEncoding {
 public:
  /// Throws Error{file} that lists all parts of an unsupported kind: model, normalizer and others.
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
  /// A token that is found in text before the text is split into words.
  struct Added {
    std::string content;
    std::int32_t id = 0;
  };
  /// When added tokens are searched for: before or after NFC.
  enum class Stage { raw, normalized };

  void encode_stage(Stage stage, std::string_view text, std::vector<std::int32_t>& ids) const;
  void encode_words(std::string_view text, std::vector<std::int32_t>& ids) const;

  std::string text_;
  BytePairs pairs_;
  std::vector<Splitter> splitters_;
  std::vector<Added> raw_, normalized_;  ///< longest first
  std::vector<std::int32_t> before_, after_;
  bool compose_ = false, prefix_space_ = false;
  std::unordered_map<std::int32_t, std::string> bytes_;
  std::optional<std::int32_t> end_of_text_;
  std::int64_t vocabulary_ = 0;
};

}  // namespace tessera
