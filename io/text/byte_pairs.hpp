#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera {

/// Byte-pair encoding of the bytes of a word (Sennrich 2016). Repeatedly merges the neighbouring pair whose merge has
/// the lowest rank, of equals the leftmost, until no pair has a merge.
class BytePairs {
 public:
  /// Adds a token.
  void add_token(std::string bytes, std::int32_t id) { ids_.insert_or_assign(std::move(bytes), id); }
  /// Adds a merge, with a higher rank number than all merges before; of equal merges the last counts. False if a part
  /// or the whole is not a token.
  bool add_merge(const std::string& left, const std::string& right);
  /// From now on a word that is a token is encoded as that token, whatever the merges.
  void take_whole_words() { whole_words_ = true; }

  /// Appends the word's ids. Returns the position of a byte that is not a token, or npos.
  std::size_t encode(std::string_view word, std::vector<std::int32_t>& ids) const;

 private:
  struct Merge {
    std::int32_t rank, id;
  };
  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }

  std::unordered_map<std::string, std::int32_t> ids_;
  std::unordered_map<std::uint64_t, Merge> merges_;
  std::int32_t next_rank_ = 0;
  bool whole_words_ = false;
};

}  // namespace tessera
