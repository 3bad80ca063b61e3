#include "io/deck/tree.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string_view>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>
#include <yaml-cpp/eventhandler.h>

#include "io/data/utf8.hpp"

namespace tessera {

Node* Node::find(std::string_view name) {
  for (Entry& entry : entries)
    if (entry.name == name) return &entry.value;
  return nullptr;
}

namespace {

constexpr std::size_t deepest = 16;

// Thrown to end the parse where reading on would be harmful or pointless.
struct Stop {
  Complaint complaint;
};

// yaml-cpp counts lines and columns from 0; a null mark has -1.
DeckPosition place_of(const YAML::Mark& mark) {
  if (mark.is_null()) return {1, 1, ""};
  return {mark.line + 1, mark.column + 1, ""};
}

/// Builds Nodes from yaml-cpp's events: unlike its own tree, these keep every duplicate and never follow an alias.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(Complaints& complaints) : complaints_(complaints) {}

  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    leaf(make(Node::Kind::null, mark));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    complain(mark, "aliases are not allowed: write the value out");
    leaf(make(Node::Kind::broken, mark));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    Node node = make(Node::Kind::scalar, mark);
    node.text = value;
    // yaml-cpp tags a plain scalar "?" and a quoted one "!".
    node.style = tag == "!" ? Node::Style::quoted : Node::Style::plain;
    if (tag != "!") refuse_tag(mark, tag);
    leaf(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Kind::list, mark, tag, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Node::Kind::map, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  // A container being filled; a map also holds the key whose value comes next.
  struct Frame {
    Node node;
    std::optional<Node> key;
  };

  static Node make(Node::Kind kind, const YAML::Mark& mark) {
    Node node;
    node.kind = kind;
    node.place = place_of(mark);
    return node;
  }
  void complain(const YAML::Mark& mark, std::string text) { complaints_.push_back({place_of(mark), std::move(text)}); }
  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) complain(mark, "anchors are not allowed: write the value out where it is needed");
  }
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    if (!tag.empty() && tag != "?") complain(mark, "tags are not allowed: the key says what type its value has");
  }
  void open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (open_.size() >= deepest) throw Stop{{place_of(mark), fmt::format("nested more than {} deep", deepest)}};
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    open_.push_back({make(kind, mark), std::nullopt});
  }
  void close() {
    Node node = std::move(open_.back().node);
    open_.pop_back();
    leaf(std::move(node));
  }
  void leaf(Node node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = open_.back();
    if (frame.node.kind == Node::Kind::list) {
      frame.node.items.push_back(std::move(node));
    } else if (!frame.key) {
      frame.key = std::move(node);
    } else {
      add_entry(frame, std::move(node));
    }
  }
  void add_entry(Frame& frame, Node value) {
    const Node key = std::move(*frame.key);
    frame.key.reset();
    // yaml-cpp places an empty value at whatever comes next, lines below its key.
    if (value.kind == Node::Kind::null) value.place = key.place;
    if (key.kind == Node::Kind::scalar)
      frame.node.entries.push_back({key.text, key.place, std::move(value)});
    else if (key.kind != Node::Kind::broken)
      complaints_.push_back({key.place, "a key must be a word"});
  }

  Complaints& complaints_;
  std::vector<Frame> open_;
  Node root_;
};

void refuse_binary(const std::string& text) {
  DeckPosition place{1, 1, ""};
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_at(text, i);
    if (length == 0)
      throw Stop{{place, fmt::format("not text: byte 0x{:02x} is no UTF-8 here", static_cast<unsigned char>(text[i]))}};
    place = text[i] == '\n' ? DeckPosition{place.line + 1, 1, ""} : DeckPosition{place.line, place.column + 1, ""};
    i += length;
  }
}

Node parse(const std::string& text, Complaints& complaints) {
  refuse_binary(text);
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  Builder builder(complaints);
  if (!parser.HandleNextDocument(builder)) throw Stop{{{1, 1, ""}, "is empty"}};
  Node root = builder.take();
  Builder rest(complaints);
  if (parser.HandleNextDocument(rest)) throw Stop{{rest.take().place, "a second document: a deck is one"}};
  return root;
}

/// What mends the mistakes that people make who do not know YAML; empty where the message says enough.
std::string_view remedy(std::string_view message) {
  namespace what = YAML::ErrorMsg;
  const auto is_any = [&](std::initializer_list<std::string_view> of) {
    return std::ranges::any_of(of, [&](std::string_view one) { return message.starts_with(one); });
  };
  if (is_any({what::UNKNOWN_ANCHOR, what::ALIAS_NOT_FOUND, what::CHAR_IN_ALIAS}))
    return ": a text that begins with * must stand in quotes, as \"*.txt\"";
  if (is_any({what::ANCHOR_NOT_FOUND, what::CHAR_IN_ANCHOR, what::UNKNOWN_TOKEN, what::MAP_VALUE,
              what::TAB_IN_INDENTATION}))
    return ": indent by spaces, not tabs; a text with \": \" in it, or that begins with a sign, must stand in quotes";
  return "";
}

/// Calls `make`; returns its node, or a broken one with a complaint if the parse failed.
template <class Make> Node guarded(Complaints& complaints, const Make& make) {
  try {
    return make();
  } catch (const Stop& stop) {
    complaints.push_back(stop.complaint);
  } catch (const YAML::Exception& error) {
    complaints.push_back({place_of(error.mark), fmt::format("not YAML: {}{}", error.msg, remedy(error.msg))});
  }
  Node broken;
  broken.kind = Node::Kind::broken;
  return broken;
}

void move_to(Node& node, const DeckPosition& place) {
  node.place = place;
  for (Node& item : node.items) move_to(item, place);
  for (Node::Entry& entry : node.entries) {
    entry.place = place;
    move_to(entry.value, place);
  }
}

}  // namespace

void expand(Node& word, const std::vector<std::string>& keys) {
  Node map;
  map.kind = Node::Kind::map;
  map.text = word.text;
  map.place = word.place;
  for (const std::string& key : keys) map.entries.push_back({key, word.place, word});
  word = std::move(map);
}

Node parse_yaml(const std::string& text, Complaints& complaints) {
  return guarded(complaints, [&] { return parse(text, complaints); });
}

Node parse_argument(const std::string& argument, const std::string& value, Complaints& complaints) {
  const DeckPosition place{0, 0, argument};
  Complaints inside;
  Node node = guarded(inside, [&] {
    if (!value.empty() && std::string_view("[{\"'").find(value.front()) != std::string_view::npos)
      return parse(value, inside);
    refuse_binary(value);
    Node word;
    word.kind = Node::Kind::scalar;
    word.text = value;
    return word;
  });
  move_to(node, place);
  for (Complaint& complaint : inside) complaints.push_back({place, std::move(complaint.text)});
  return node;
}

}  // namespace tessera
