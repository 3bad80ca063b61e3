#include "core/config/other_names.hpp"

#include <cctype>
#include <map>
#include <sstream>

#include "core/config/each_section.hpp"
#include "core/config/keys.hpp"

namespace tessera {
namespace {

constexpr std::size_t longest_name = 64;

/// A name as it is compared: lower case, without hyphens and underscores.
std::string folded(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (c != '_' && c != '-') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return plain;
}

std::map<std::string, const OtherName*> by_name() {
  std::map<std::string, const OtherName*> found;
  for (const OtherName& entry : other_names()) {
    std::istringstream words(entry.names);
    for (std::string name; words >> name;) found.emplace(folded(name), &entry);
  }
  return found;
}

}  // namespace

const std::vector<OtherName>& other_names() {
  static const std::vector<OtherName> all = [] {
    std::vector<OtherName> rows;
    each_section(every_section(), [&]<class S>(const S&) {
      if constexpr (requires { &S::other_names; })
        rows.insert(rows.end(), S::other_names().begin(), S::other_names().end());
    });
    return rows;
  }();
  return all;
}

const OtherName* find_other_name(std::string_view path) {
  if (path.size() > longest_name) return nullptr;
  static const std::map<std::string, const OtherName*> entries = by_name();
  const std::string whole = folded(path), last = whole.substr(whole.rfind('.') + 1);
  for (const std::string& name : {whole, last})
    if (const auto found = entries.find(name); found != entries.end()) return found->second;
  return nullptr;
}

std::string meant_by(std::string_view path) {
  if (const OtherName* const other = find_other_name(path)) {
    const std::string key = other->key, note = other->note;
    if (key.empty()) return ": " + note;
    return ", did you mean " + key + "?" + (note.empty() ? "" : " (" + note + ")");
  }
  const std::string nearest = nearest_key(path);
  return nearest.empty() ? "" : ", did you mean " + nearest + "?";
}

}  // namespace tessera
