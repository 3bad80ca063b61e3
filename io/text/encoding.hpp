#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Encodes text as token ids and decodes them.
class TextEncoding {
 public:
  virtual ~TextEncoding() = default;
  /// Token ids of a text. Throws Error{usage} with position and cause for text that cannot be encoded.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// Bytes of one token, which need not be whole characters; empty for tokens that stand for no text.
  virtual std::string bytes_of(std::int32_t token) const = 0;
  /// The token that ends a document, if there is one.
  virtual std::optional<std::int32_t> end_of_text() const { return std::nullopt; }
};

/// Every byte is a token.
class ByteEncoding final : public TextEncoding {
 public:
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string bytes_of(std::int32_t token) const override {
    return token < 256 ? std::string(1, static_cast<char>(token)) : "";
  }
};

}  // namespace tessera
