#pragma once
#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/config/recipe_config.hpp"
#include "core/config/sharding_group.hpp"
#include "core/config/structure.hpp"
#include "core/config/value.hpp"
#include "core/config/visitor.hpp"

namespace tessera::test {

/// Visitor that makes every section and gives each key a value, drawn from those that its rule allows and other than
/// the one it has. With `only`, that key alone is given one.
class DrawnKeys : public ConfigVisitor<DrawnKeys> {
 public:
  explicit DrawnKeys(unsigned seed, std::string only = "") : draw_(seed), only_(std::move(only)) {}

  std::map<std::string, std::string> given;  ///< key -> its value, as a deck writes it

  template <class T, class Rule> void value(const Key& key, T& member, const Rule& rule) {
    if (!only_.empty() && key.path != only_) return;
    using Value = typename ValueOf<T>::type;
    Value value{};
    do fill(value, key.path, rule);
    while (filled(member) && value == static_cast<const Value&>(member) && !is_single(rule));
    given[key.path] = deck_text(value);
    member = std::move(value);
  }
  /// The keys whose values are not the given ones, each with both.
  std::vector<std::string> unlike(const std::map<std::string, std::string>& values) const {
    std::vector<std::string> list;
    for (const auto& [key, wanted] : given)
      if (const auto found = values.find(key); found == values.end() || found->second != wanted)
        list.push_back(key + ": " + (found == values.end() ? "nothing" : found->second) + ", not " + wanted);
    return list;
  }

  template <class S> S* enter(const Section&, S& member) { return &member; }
  template <class S> S* enter(const Section&, std::optional<S>& member) {
    return member ? &*member : &member.emplace();
  }

 private:
  static bool is_single(const Range& range) { return range.low == range.high; }
  template <class Rule> static bool is_single(const Rule&) { return false; }

  void fill(bool& value, const std::string&, OneOf) { value = draw_() % 2 == 1; }
  template <Choice E> void fill(E& value, const std::string&, OneOf) {
    value = Names<E>::table[draw_() % std::size(Names<E>::table)].value;
  }
  void fill(ShardingGroup& value, const std::string&, OneOf) {
    const auto drawn = static_cast<std::int64_t>(draw_() % 10);
    value = drawn == 0 ? ShardingGroup() : drawn == 1 ? ShardingGroup::host() : ShardingGroup(drawn);
  }
  void fill(FactorFormat& value, const std::string&, OneOf) {
    const std::vector<std::string> names = factor_formats();
    value = std::string_view(names[draw_() % names.size()]);
  }
  void fill(FormatElement& value, const std::string&, OneOf) {
    value = {static_cast<int>(draw_() % 2 * (2 + draw_() % 4)), static_cast<int>(1 + draw_() % 2)};
  }
  void fill(FormatBlock& value, const std::string&, OneOf) {
    const auto edge = static_cast<std::int64_t>(16 << draw_() % 4);
    value = {draw_() % 2 == 1 ? 1 : edge, edge};
  }
  template <Choice E> void fill(std::vector<E>& list, const std::string&, OneOf) {
    list.clear();
    for (const Name<E>& name : Names<E>::table)
      if (draw_() % 2 == 1) list.push_back(name.value);
  }
  void fill(double& value, const std::string&, const Range& range) {
    const double width = std::min(range.high - range.low, 1000.0);
    value = range.low + width * (0.1 + 0.8 * std::generate_canonical<double, 53>(draw_));
  }
  void fill(std::int64_t& value, const std::string&, const Range& range) {
    value = static_cast<std::int64_t>(range.low) + static_cast<std::int64_t>(draw_() % span_of(range));
  }
  void fill(std::uint64_t& value, const std::string&, const Range& range) {
    value = static_cast<std::uint64_t>(range.low) + (std::uint64_t{draw_()} << 32) + draw_();
  }
  void fill(std::string& value, const std::string& path, Text rule) {
    value = "/of/" + path + "/" + std::to_string(draw_());
    if (rule == Text::any) value += "\t\"'#: é\\\n";
  }
  template <Structured S> void fill(S& value, const std::string&, Structure) {
    value = S();
    DrawnKeys inside(static_cast<unsigned>(draw_()));
    S::visit(value, inside);
  }
  template <Structured S> void fill(std::map<std::string, S>& named, const std::string& path, Structure rule) {
    named.clear();
    for (int i = 0; i < 2; ++i) fill(named["own_" + std::to_string(draw_())], path, rule);
  }
  template <class T, class Rule> void fill(std::vector<T>& list, const std::string& path, const Rule& rule) {
    list.resize(1 + draw_() % 3);
    for (T& item : list) fill(item, path, rule);
  }
  void fill(std::map<std::string, std::string>& words, const std::string& path, Text rule) {
    words.clear();
    for (int i = 0; i < 3; ++i) fill(words["word_" + std::to_string(draw_())], path, rule);
  }

  /// How many whole numbers a range has, at most 2^31.
  static std::uint64_t span_of(const Range& range) {
    return static_cast<std::uint64_t>(std::min(range.high - range.low, 2147483647.0)) + 1;
  }

  std::mt19937 draw_;
  std::string only_;
};

}  // namespace tessera::test
