#include "core/config/effects.hpp"

#include <algorithm>
#include <map>

#include "core/config/each_section.hpp"
#include "core/config/keys.hpp"
#include "core/config/values.hpp"

namespace tessera {
namespace {

/// The effects of all sections, in the order of the deck.
const std::vector<Effect>& all_effects() {
  static const std::vector<Effect> all = [] {
    std::vector<Effect> rows;
    each_section(every_section(), [&]<class S>(const S&) {
      if constexpr (requires { &S::effects; }) rows.insert(rows.end(), S::effects().begin(), S::effects().end());
    });
    return rows;
  }();
  return all;
}

/// Whether a value asks for nothing.
bool is_off(const std::string& value) {
  return value == "false" || value == "0" || value == "\"\"" || value == "[]" || value == "{}" || value == "auto";
}

bool covers(const std::string& key, const std::string& path) {
  return path == key || path.starts_with(key + ".");
}

}  // namespace

std::string when_it_matters(const std::string& key) {
  std::string when;
  for (const Effect& effect : all_effects()) {
    if (!covers(effect.key, key) || effect.decides == key) continue;
    const bool named = std::string_view(effect.only).find(effect.decides) != std::string_view::npos;
    when += (when.empty() ? "only " : ", and ") + std::string(effect.only);
    if (!named) when += " (" + std::string(effect.decides) + ")";
  }
  return when;
}

std::vector<Finding> without_effect(const RunConfig& config, const std::set<std::string>& given) {
  const std::map<std::string, std::string> values = values_of(config);
  const bool resolved = std::ranges::all_of(values, [&](const auto& value) { return given.contains(value.first); });
  const auto says_something = [&](const KeyDoc& doc) {
    const bool derived = doc.standard.starts_with("derived");
    const std::string& value = values.at(doc.path);
    if (resolved) return !derived && value != doc.standard;
    return !is_off(value) || !(derived || value == doc.standard);
  };
  std::vector<Finding> found;
  for (const Effect& effect : all_effects()) {
    if (effect.matters(config)) continue;
    for (const KeyDoc& doc : key_docs())
      if (doc.kind == KeyDoc::Kind::key && covers(effect.key, doc.path) && given.contains(doc.path) &&
          values.contains(doc.path) && doc.path != effect.decides && says_something(doc))
        found.push_back({{doc.path, effect.decides}, std::string("has an effect only ") + effect.only});
  }
  return found;
}

}  // namespace tessera
