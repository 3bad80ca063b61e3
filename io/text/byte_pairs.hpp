#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera {

/// Byte-pair encoding (Sennrich 2016) of the bytes of a word: of all neighbours that have a merge the pair of the
/// lowest rank is merged, the leftmost first, until there is none.
class BytePairs {
 public:
  /// A token's bytes.
  void add_token(std::string bytes, std::int32_t id) { ids_.insert_or_assign(std::move(bytes), id); }
  /// The next merge, of a lower rank than all that follow. False where a part or the whole is no token.
  bool add_merge(const std::string& left, const std::string& right);
  /// A word that is a token is taken whole, merges or not.
  void take_whole_words() { whole_words_ = true; }

  /// Appends the word's ids. Returns the place of a byte that is no token, or npos.
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
