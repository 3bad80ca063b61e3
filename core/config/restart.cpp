#include "core/config/restart.hpp"

#include <map>

#include "core/config/config.hpp"
#include "core/config/value.hpp"
#include "core/config/visitor.hpp"

namespace tessera {
namespace {

/// A key's value as a deck writes it, and what a resumed run may do with it.
struct Kept {
  std::string text;
  Restart restart;
};

/// Collects every key whose value a resumed run must keep, unless asked to change it, and those that are told of.
class Fixed : public ConfigVisitor<Fixed> {
 public:
  std::map<std::string, Kept> values;

  template <class T, class Rule> void value(const Key& key, const T& member, const Rule&) {
    if ((must_keep(key.restart) || key.restart == Restart::told) && filled(member))
      values[key.path] = {deck_text(member), key.restart};
  }
};

std::map<std::string, Kept> fixed_of(const RunConfig& config) {
  Fixed visitor;
  RunConfig::visit(config, visitor);
  return visitor.values;
}

}  // namespace

std::vector<KeyChange> changed_keys(const RunConfig& before, const RunConfig& now) {
  std::map<std::string, Kept> old = fixed_of(before), values = fixed_of(now);
  std::vector<KeyChange> changes;
  for (auto& [key, value] : old) values.try_emplace(key, Kept{"absent", value.restart});
  for (const auto& [key, value] : values)
    if (const Kept& was = old.try_emplace(key, Kept{"absent", value.restart}).first->second; was.text != value.text)
      changes.push_back({key, was.text, value.text, value.restart});
  return changes;
}

std::string keep_it_text(const std::string& key, Restart restart) {
  const std::string keep = "a resumed run must keep it";
  return restart == Restart::on_request ? keep + ", unless `train --allow-change " + key + "` lets it change" : keep;
}

std::vector<Finding> changes_at_restart(const RunConfig& saved, const RunConfig& now,
                                        const std::set<std::string>& asked) {
  std::vector<Finding> found;
  for (const auto& [key, before, value, restart] : changed_keys(saved, now))
    if (must_keep(restart) && !asked.contains(key))
      found.push_back({{key},
                       "is " + value + ", and was " + before +
                           " when the checkpoint was saved: " + keep_it_text(key, restart)});
  return found;
}

}  // namespace tessera
