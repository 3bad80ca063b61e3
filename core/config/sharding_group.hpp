#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/config/value.hpp"

namespace tessera {

/// How many neighbouring ranks keep one copy of weights, gradients and optimizer state: a word or a number.
class ShardingGroup {
 public:
  static constexpr std::int64_t most = 65536;
  static constexpr const char* allowed = "all | host | 1 to 65536";
  static std::vector<std::string> words() { return {"all", "host"}; }

  ShardingGroup() = default;
  ShardingGroup(std::int64_t ranks) : kind_(Kind::ranks), ranks_(ranks) {}
  static ShardingGroup host() {
    ShardingGroup group;
    group.kind_ = Kind::host;
    return group;
  }

  bool is_host() const { return kind_ == Kind::host; }
  /// Settles what `host` means: it stands for all ranks until then.
  void settle(std::int64_t ranks_of_host) {
    if (is_host()) ranks_ = ranks_of_host;
  }
  /// Ranks of a group among `world` ranks.
  std::int64_t of(std::int64_t world) const { return ranks_ == 0 ? world : ranks_; }

  /// As a deck writes it.
  std::string text() const {
    switch (kind_) {
      case Kind::all: return "all";
      case Kind::host: return "host";
      case Kind::ranks: break;
    }
    return std::to_string(ranks_);
  }
  bool operator==(const ShardingGroup&) const = default;

 private:
  enum class Kind : std::uint8_t { all, host, ranks };
  Kind kind_ = Kind::all;
  std::int64_t ranks_ = 0;  ///< 0: all
};

inline std::string deck_text(const ShardingGroup& group) { return group.text(); }
template <> struct TypeName<ShardingGroup> { static constexpr const char* text = "a word or an integer"; };
template <> inline std::vector<std::string> choices_of<ShardingGroup>() { return ShardingGroup::words(); }

}  // namespace tessera
