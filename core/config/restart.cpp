#include <map>

#include "core/config/config.hpp"
#include "core/config/value.hpp"

namespace tessera {
namespace {

/// The text of every key that must not change.
class Fixed {
 public:
  Fixed(std::string prefix, std::map<std::string, std::string>& values) : prefix_(std::move(prefix)), values_(values) {}

  template <class T, class Rule>
  void key(const char* name, const T& member, const Rule&, Restart restart, const char*) {
    if (restart == Restart::fixed) values_[prefix_ + name] = deck_text(member);
  }
  template <class T, class Rule>
  void required(const char* name, const T& member, const Rule& rule, Restart restart, const char* help) {
    key(name, member, rule, restart, help);
  }
  template <class T, class Rule>
  void derived(const char* name, const Derived<T>& member, const Rule& rule, Restart restart, const char*,
               const char* help) {
    if (member.known()) key(name, member.get(), rule, restart, help);
  }
  template <class S>
  void section(const char* name, const S& member, const char*) {
    Fixed inside(prefix_ + name + ".", values_);
    S::visit(member, inside);
  }
  template <class S>
  void section(const char* name, const std::optional<S>& member, const char* help) {
    if (member) section(name, *member, help);
  }

 private:
  std::string prefix_;
  std::map<std::string, std::string>& values_;
};

std::map<std::string, std::string> fixed_of(const RunConfig& config) {
  std::map<std::string, std::string> values;
  Fixed visitor("", values);
  RunConfig::visit(config, visitor);
  return values;
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
