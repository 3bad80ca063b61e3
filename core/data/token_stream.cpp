#include "core/data/token_stream.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"

namespace tessera {
namespace {
std::int64_t size_of(const TokenSpan& piece) {
  return std::visit([](auto tokens) { return static_cast<std::int64_t>(tokens.size()); }, piece);
}
}  // namespace

void TokenStream::append(TokenSpan piece) {
  const std::int64_t size = size_of(piece);
  if (size == 0) return;
  ends_.push_back(count() + size);
  pieces_.push_back(piece);
}

void TokenStream::read(std::int64_t first, std::span<std::int32_t> out) const {
  require(first >= 0 && first + static_cast<std::int64_t>(out.size()) <= count(), "TokenStream::read",
          "the range leaves the tokens");
  auto piece = static_cast<std::size_t>(std::ranges::upper_bound(ends_, first) - ends_.begin());
  for (std::int64_t at = first; !out.empty(); ++piece) {
    const std::int64_t skip = at - (ends_[piece] - size_of(pieces_[piece]));
    const auto n = std::min(out.size(), static_cast<std::size_t>(ends_[piece] - at));
    std::visit(
        [&](auto tokens) {
          std::ranges::transform(tokens.subspan(static_cast<std::size_t>(skip), n), out.begin(),
                                 [](auto token) { return static_cast<std::int32_t>(token); });
        },
        pieces_[piece]);
    out = out.subspan(n);
    at += static_cast<std::int64_t>(n);
  }
}

}  // namespace tessera
