#pragma once
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace tessera {

/// Tokens in the type in which a file holds them.
using TokenSpan =
    std::variant<std::span<const std::uint8_t>, std::span<const std::uint16_t>, std::span<const std::uint32_t>>;

/// Concatenation of pieces of tokens, which it does not own.
class TokenStream {
 public:
  void append(TokenSpan piece);
  std::int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }

  /// out[i] = token first + i; the range must lie inside (Error{internal}). Ids from 2^31 on come out negative.
  void read(std::int64_t first, std::span<std::int32_t> out) const;

 private:
  std::vector<TokenSpan> pieces_;   // none empty
  std::vector<std::int64_t> ends_;  // end of each piece, in tokens from the start of the whole
};

}  // namespace tessera
