#include <map>

#include "core/config/config.hpp"
#include "core/config/value.hpp"
#include "core/config/visitor.hpp"

namespace tessera {
namespace {

/// The text of every key that must not change.
class Fixed : public ConfigVisitor<Fixed> {
 public:
  std::map<std::string, std::string> values;

  template <class T, class Rule> void value(const Key& key, const T& member, const Rule&) {
    if (key.restart == Restart::fixed && filled(member)) values[key.path] = deck_text(member);
  }
};

std::map<std::string, std::string> fixed_of(const RunConfig& config) {
  Fixed visitor;
  RunConfig::visit(config, visitor);
  return visitor.values;
}

}  // namespace

std::vector<KeyChange> changed_keys(const RunConfig& before, const RunConfig& now) {
  std::map<std::string, std::string> old = fixed_of(before), values = fixed_of(now);
  std::vector<KeyChange> changes;
  for (auto& [key, value] : old) values.try_emplace(key, "absent");
  for (const auto& [key, value] : values)
    if (const std::string& was = old.try_emplace(key, "absent").first->second; was != value)
      changes.push_back({key, was, value});
  return changes;
}

std::vector<Finding> changes_at_restart(const RunConfig& saved, const RunConfig& now) {
  std::vector<Finding> found;
  for (const auto& [key, before, value] : changed_keys(saved, now))
    found.push_back(
        {{key}, "is " + value + ", and was " + before + " when the checkpoint was saved: a resumed run must keep it"});
  return found;
}

}  // namespace tessera
