#include "io/deck/scalar.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tessera {
namespace {

std::string is_not(const Node& node, const char* type) {
  if (node.kind == Node::Kind::null) return std::string("has no value: ") + type + " is needed";
  return shown(node) + " is not " + type;
}

bool is_plain(const Node& node) { return node.kind == Node::Kind::scalar && node.style == Node::Style::plain; }

/// Whether a text is a decimal integer, perhaps with a sign, without leading zeros (octal in YAML 1.1).
bool looks_whole(std::string_view text) {
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) text.remove_prefix(1);
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return false;
  return text.size() == 1 || text.front() != '0';
}

template <class T> std::string read_whole(const Node& node, T& value) {
  if (!is_plain(node) || !looks_whole(node.text)) return is_not(node, "an integer");
  const char* const begin = node.text.data() + (node.text.front() == '+' ? 1 : 0);
  const char* const end = node.text.data() + node.text.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  return error == std::errc() && stop == end ? "" : shown(node) + " is out of range";
}

}  // namespace

std::string shown(const std::string& text) {
  constexpr std::size_t longest = 40;
  std::size_t cut = std::min(text.size(), longest);
  // Cuts between UTF-8 characters.
  while (cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return deck_text(text.substr(0, cut)) + (cut < text.size() ? "..." : "");
}

std::string shown(const Node& node) {
  switch (node.kind) {
    case Node::Kind::scalar: {
      const std::string quoted = shown(node.text);
      // As written: without quotes, unless the text is empty or has characters that need escaping.
      const bool bare = node.style == Node::Style::plain && !node.text.empty() && quoted == '"' + node.text + '"';
      return bare ? node.text : quoted;
    }
    case Node::Kind::list: return "a list";
    case Node::Kind::map: return "a section";
    default: return "nothing";
  }
}

std::string read_scalar(const Node& node, bool& value) {
  if (!is_plain(node) || (node.text != "true" && node.text != "false")) return is_not(node, "a boolean");
  value = node.text == "true";
  return "";
}

std::string read_scalar(const Node& node, std::int64_t& value) { return read_whole(node, value); }
std::string read_scalar(const Node& node, std::uint64_t& value) { return read_whole(node, value); }

std::string read_scalar(const Node& node, double& value) {
  if (!is_plain(node)) return is_not(node, "a number");
  std::string_view text = node.text;
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  for (const char* word : {".inf", "-.inf", ".nan", ".Inf", "-.Inf", ".NaN"})
    if (text == word) return shown(node) + " is not finite";
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (stop != text.data() + text.size() || error == std::errc::invalid_argument) return is_not(node, "a number");
  if (error != std::errc()) return shown(node) + " is out of range";
  return std::isfinite(value) ? "" : shown(node) + " is not finite";
}

std::string read_scalar(const Node& node, ShardingGroup& value) {
  std::int64_t ranks = 0;
  if (node.kind == Node::Kind::scalar && node.text == "all") value = {};
  else if (node.kind == Node::Kind::scalar && node.text == "host") value = ShardingGroup::host();
  else if (!read_whole(node, ranks).empty()) return is_not(node, "a word that is allowed, or an integer");
  else if (ranks < 1 || ranks > ShardingGroup::most) return shown(node) + " is out of range";
  else value = ranks;
  return "";
}

std::string read_scalar(const Node& node, FactorFormat& value) {
  if (node.kind != Node::Kind::scalar || node.text.empty()) return is_not(node, "the name of a format");
  value.name = node.text;
  return "";
}

std::string read_scalar(const Node& node, FormatElement& value) {
  const auto element = node.kind == Node::Kind::scalar ? formats::element_named(node.text) : std::nullopt;
  if (!element) return is_not(node, "an element");
  value = {element->exponent_bits, element->mantissa_bits};
  return "";
}

std::string read_scalar(const Node& node, FormatBlock& value) {
  value = {};
  if (node.kind == Node::Kind::scalar && node.text == "tensor") return "";
  const auto edge = [](const Node& item, std::int64_t& to) {
    return read_whole(item, to).empty() && to >= 1 && to <= 128;
  };
  const bool two = node.kind == Node::Kind::list && node.items.size() == 2;
  if (two && edge(node.items[0], value.rows) && edge(node.items[1], value.columns)) return "";
  return is_not(node, "a block");
}

std::string read_scalar(const Node& node, std::string& value) {
  if (node.kind != Node::Kind::scalar) return is_not(node, "a text");
  value = node.text;
  return "";
}

}  // namespace tessera
