#include "io/deck/deck.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "core/config/keys.hpp"
#include "core/config/retired.hpp"
#include "io/deck/base.hpp"
#include "io/deck/reader.hpp"
#include "io/text/tokenizer.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

constexpr std::size_t largest_deck = std::size_t{1} << 20;

std::string_view name_in_section(std::string_view key) { return key.substr(key.rfind('.') + 1); }

/// The section that holds a key, made where the deck lacks it; null where something else stands on its way.
Node* section_for(Node& root, std::string_view key, const DeckPosition& place) {
  Node* map = &root;
  for (std::size_t begin = 0, dot; (dot = key.find('.', begin)) != std::string_view::npos; begin = dot + 1) {
    if (map->kind != Node::Kind::map) return nullptr;
    const std::string name(key.substr(begin, dot - begin));
    if (!map->find(name)) {
      Node section;
      section.kind = Node::Kind::map;
      section.place = place;
      map->entries.push_back({name, place, std::move(section)});
    }
    map = map->find(name);
    expand_short_form(*map, key.substr(0, dot));
  }
  return map->kind == Node::Kind::map ? map : nullptr;
}

/// Gives a key its value, in place of the deck's own. Where its section is none, DeckReader complains.
void put(Node& root, std::string_view key, Node value) {
  Node* const section = section_for(root, key, value.place);
  if (!section) return;
  const DeckPosition place = value.place;
  if (Node* const given = section->find(name_in_section(key))) *given = std::move(value);
  else section->entries.push_back({std::string(name_in_section(key)), place, std::move(value)});
}

/// Writes one --set into the deck's tree, in place of the deck's own value.
void apply(Node& root, const Override& asked, Complaints& complaints) {
  const std::string argument = "--set " + asked.key + "=" + asked.value;
  const DeckPosition place{0, 0, argument};
  const KeyDoc* const doc = find_key(asked.key);
  if (!doc || doc->kind == KeyDoc::Kind::section) {
    complaints.push_back({place, asked.key + ": " + (doc ? "is a section, set one of its keys"
                                                         : unknown_text(asked.key, asked.value))});
    return;
  }
  put(root, asked.key, parse_argument(argument, asked.value, complaints));
}

void read_tree(Node& root, Reading& reading, RunConfig& config) {
  if (root.kind == Node::Kind::broken) return;
  if (root.kind == Node::Kind::null) {
    reading.complaints.push_back({root.place, "is empty"});
  } else if (root.kind != Node::Kind::map) {
    reading.complaints.push_back({root.place, shown(root) + " is not a deck: sections of keys and values are needed"});
  } else {
    DeckReader reader(reading, root);
    RunConfig::visit(config, reader);
    reader.leave();
  }
}

/// The folder of the deck that gives a key.
std::filesystem::path folder_of(const char* key, const Provenance& provenance) {
  const auto origin = provenance.origins.find(key);
  const bool inherited = origin != provenance.origins.end() && origin->second.source == Source::base;
  std::error_code error;
  return std::filesystem::absolute(inherited ? origin->second.base : provenance.file, error).parent_path();
}

/// Makes data.root, relative to the folder of the deck that gives it, absolute, since the resolved deck is written to
/// another folder.
void place_root(const Provenance& provenance, DataConfig& data) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path root = folder_of("data.root", provenance);
  if (data.root.known()) root /= data.root.get();
  const fs::path real = fs::weakly_canonical(root, error);
  fs::path clean = error ? root.lexically_normal() : real;
  if (!clean.has_filename() && clean.has_relative_path()) clean = clean.parent_path();
  data.root = clean.string();
}

/// The same for data.tokenizer; fills model.vocab from the tokenizer if the deck does not give it.
void place_tokenizer(RunConfig& config, Reading& reading, Problems& problems) {
  namespace fs = std::filesystem;
  std::string& tokenizer = config.data.tokenizer;
  if (tokenizer.empty()) return;
  tokenizer = (folder_of("data.tokenizer", reading.provenance) / tokenizer).lexically_normal().string();
  if (config.model.vocab.known() || config.data.kind == DataKind::text) return;
  Problems unreadable;
  attempt(unreadable, [&] { config.model.vocab.fill(Tokenizer(fs::path(tokenizer)).vocabulary()); });
  for (const Problem& problem : unreadable.list())
    problems.add(problem.code, reading.provenance.located({{"data.tokenizer"}, problem.text}));
  if (!unreadable.empty()) reading.failed.insert("model.vocab");
}

void check_config(const RunConfig& config, Reading& reading, std::vector<std::string>& contradictions) {
  for (const Finding& finding : check(config)) {
    const auto failed = [&](const std::string& key) { return reading.failed_within(key); };
    if (std::none_of(finding.keys.begin(), finding.keys.end(), failed))
      contradictions.push_back(reading.provenance.located(finding));
  }
}

void report(Reading& reading, Problems& problems) {
  const auto position = [](const Complaint& complaint) {
    return std::tuple(!complaint.place.argument.empty(), complaint.place.base, complaint.place.line,
                      complaint.place.column);
  };
  std::stable_sort(reading.complaints.begin(), reading.complaints.end(),
                   [&](const Complaint& a, const Complaint& b) { return position(a) < position(b); });
  for (const Complaint& complaint : reading.complaints)
    problems.add(Exit::deck, reading.where(complaint.place) + ": " + complaint.text);
}

}  // namespace

std::string Provenance::located(const Finding& finding) const {
  std::string where = file + ":1:1";
  // Precedence of places: overrides, then the deck, then its bases.
  for (const Source source : {Source::override, Source::deck, Source::base}) {
    const auto given = std::find_if(finding.keys.begin(), finding.keys.end(), [&](const std::string& key) {
      const auto origin = origins.find(key);
      return origin != origins.end() && origin->second.source == source;
    });
    if (given == finding.keys.end()) continue;
    where = origins.find(*given)->second.where;
    break;
  }
  return where + ": " + finding.keys.front() + ": " + finding.text;
}

Override override_of(const std::string& argument) {
  const std::size_t equals = argument.find('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(Exit::usage, "--set " + argument + ": must read key=value, as --set optimizer.lr=3e-4");
  return {argument.substr(0, equals), argument.substr(equals + 1)};
}

std::string read_deck_text(const std::string& path, Problems& problems) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) {
    problems.add(Exit::deck, path + ": is a folder, not a deck");
    return "";
  }
  // A pipe may block for ever if nobody writes to it, and several ranks would each read a part.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    problems.add(Exit::deck, path + ": is a pipe or device, not a deck: write it to a file");
    return "";
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(largest_deck + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    problems.add(Exit::deck, path + ": cannot be read: " + std::strerror(errno));
    return "";
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > largest_deck) problems.add(Exit::deck, path + ": is larger than 1 MiB, no deck");
  return text;
}

namespace {

/// The section that holds a key, where the deck has it; else null.
Node* find_section(Node& root, std::string_view key) {
  Node* section = &root;
  for (std::size_t dot; section && (dot = key.find('.')) != std::string_view::npos; key.remove_prefix(dot + 1))
    section = section->find(key.substr(0, dot));
  return section;
}

/// Gives the keys and values of a stored deck that are retired the names of today, or drops them. Writes down what was
/// built in when it was stored.
void renew(Node& root, Complaints& complaints) {
  for (const Retired& old : retired()) {
    Node* const section = find_section(root, old.key);
    if (!section) continue;
    const auto found = std::ranges::find(section->entries, name_in_section(old.key), &Node::Entry::name);
    if (found == section->entries.end()) continue;
    if (!old.value.empty()) {
      if (found->value.text == old.value) found->value.text = old.now;
      continue;
    }
    Node value = std::move(found->value);
    section->entries.erase(found);
    if (!old.now.empty()) put(root, old.now, std::move(value));
  }
  for (const auto& [key, value] : built_in())
    if (Node* const section = find_section(root, key); section && !section->find(std::string(name_in_section(key))))
      put(root, key, parse_argument("", std::string(value), complaints));
}

enum class Origin { written, stored };

Deck parse(const std::string& text, const std::string& path, const std::vector<Override>& overrides, Origin origin,
           Problems& problems) {
  Deck deck;
  Reading reading;
  reading.provenance.file = path;
  Node root = parse_yaml(text, reading.complaints);
  const bool stored = origin == Origin::stored;
  if (stored) renew(root, reading.complaints);
  const Bases bases = stored ? Bases() : add_bases(root, path, reading.complaints);
  reading.provenance.bases = bases.paths;
  reading.complete = bases.complete;
  deck.text_hash = fnv1a64(text + bases.texts);
  for (const Override& asked : overrides) apply(root, asked, reading.complaints);
  read_tree(root, reading, deck.config);
  place_root(reading.provenance, deck.config.data);
  place_tokenizer(deck.config, reading, problems);
  derive(deck.config);
  std::vector<std::string> contradictions;
  if (root.kind == Node::Kind::map) check_config(deck.config, reading, contradictions);
  report(reading, problems);
  for (std::string& contradiction : contradictions) problems.add(Exit::deck, std::move(contradiction));
  deck.provenance = std::move(reading.provenance);
  return deck;
}

}  // namespace

Deck parse_deck(const std::string& text, const std::string& path, const std::vector<Override>& overrides,
                Problems& problems) {
  return parse(text, path, overrides, Origin::written, problems);
}

Deck parse_saved_deck(const std::string& text, const std::string& path) {
  Problems wrong, problems;
  Deck deck = parse(text, path, {}, Origin::stored, wrong);
  for (const Problem& problem : wrong.list()) problems.add(Exit::file, problem.text);
  problems.raise();
  return deck;
}

Deck read_deck(const std::string& path, const std::vector<Override>& overrides, Problems& problems) {
  Problems unreadable;
  const std::string text = read_deck_text(path, unreadable);
  problems.add(unreadable);
  return unreadable.empty() ? parse_deck(text, path, overrides, problems) : Deck();
}

}  // namespace tessera
