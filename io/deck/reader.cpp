#include "io/deck/reader.hpp"

#include <algorithm>
#include <cctype>
#include <map>

#include "core/config/other_names.hpp"

namespace tessera {

std::string Reading::where(const DeckPosition& place) const {
  if (!place.argument.empty()) return place.argument;
  const std::string& file = place.base.empty() ? provenance.file : place.base;
  return file + ":" + std::to_string(place.line) + ":" + std::to_string(place.column);
}

void Reading::fail(const DeckPosition& place, const std::string& path, const std::string& text) {
  failed.insert(path);
  complaints.push_back({place, path + ": " + text});
}

void Reading::miss(const DeckPosition& place, const std::string& path, const std::string& wanted) {
  if (complete) return fail(place, path, "missing: " + wanted);
  failed.insert(path);
}

bool Reading::failed_within(const std::string& path) const {
  for (std::size_t end = path.find('.'); end != std::string::npos; end = path.find('.', end + 1))
    if (failed.contains(path.substr(0, end))) return true;
  return failed.contains(path);
}

Node* DeckReader::take(const char* name) {
  Map& map = maps_.back();
  map.known.insert(name);
  return map.node ? map.node->find(name) : nullptr;
}

bool DeckReader::is_map(const Node& node, const std::string& path) {
  if (node.kind == Node::Kind::map) return true;
  if (node.kind == Node::Kind::broken) reading_.failed.insert(path);
  else if (node.kind == Node::Kind::null) reading_.fail(node.place, path, "has no keys: give it some, or leave it out");
  else reading_.fail(node.place, path, shown(node) + " is not a section of keys and values");
  return false;
}

void DeckReader::set_origin(const std::string& path, Source source) {
  reading_.provenance.origins[path] = {source, reading_.where(maps_.back().place), ""};
}

void DeckReader::set_origin(const DeckPosition& place, const std::string& path) {
  const Source source = !place.argument.empty() ? Source::override : place.base.empty() ? Source::deck : Source::base;
  reading_.provenance.origins[path] = {source, reading_.where(place), place.base};
}

void DeckReader::refuse_value(const DeckPosition& place, const std::string& path, const std::string& wrong) {
  const Map& map = maps_.back();
  if (map.word.empty() || reading_.where(place) != reading_.where(map.place)) return reading_.fail(place, path, wrong);
  if (!reading_.failed.contains(map.word)) reading_.fail(place, map.word, wrong);
}

void DeckReader::finish_structure(const Node& node, const std::string& path, std::size_t complaints_before) {
  if (node.kind == Node::Kind::broken || reading_.complaints.size() > complaints_before) reading_.failed.insert(path);
  set_origin(node.place, path);
}

namespace {
// A key for messages: as it stands if it is a word, else quoted.
std::string key_shown(const std::string& name, bool is_word) {
  return is_word && name.size() <= 40 ? name : shown(name);
}
}  // namespace

bool DeckReader::is_word(const std::string& name) {
  const auto letter = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
  return !name.empty() && std::all_of(name.begin(), name.end(), letter);
}

std::string unknown_text(const std::string& path, const std::string& value) {
  if (const Retired* const old = find_retired(path, value)) return refusal_of(*old);
  return "unknown key" + meant_by(path);
}

void DeckReader::leave() {
  const Map map = std::move(maps_.back());
  maps_.pop_back();
  if (!map.node) return;
  std::map<std::string_view, const DeckPosition*> seen;
  for (const Node::Entry& entry : map.node->entries) {
    const std::string path = map.prefix + key_shown(entry.name, is_word(entry.name));
    const auto [first, is_new] = seen.emplace(entry.name, &entry.place);
    if (!is_new) {
      reading_.fail(entry.place, path, "given twice, first at " + reading_.where(*first->second) + ": keep one");
    } else if (!map.known.contains(entry.name)) {
      reading_.fail(entry.place, path, unknown_text(map.prefix + entry.name, entry.value.text));
    }
  }
}

bool DeckReader::allows(Text rule, const std::string& value) {
  if (rule == Text::any) return true;
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::any_of(value.begin(), value.end(), is_control)) return false;
  return rule == Text::line_or_empty || !value.empty();
}

}  // namespace tessera
