#pragma once
#include <cstdint>
#include <string>

#include "core/config/recipe_config.hpp"
#include "core/config/sharding_group.hpp"
#include "core/config/value.hpp"
#include "io/deck/tree.hpp"

namespace tessera {

/// A value for messages: a text in quotes and shortened, a node as written or "a list".
std::string shown(const std::string& text);
std::string shown(const Node& node);

/// Reads a node as a member's type, without checking the key's rule. Returns what is wrong, or an empty string.
std::string read_scalar(const Node& node, bool& value);
std::string read_scalar(const Node& node, std::int64_t& value);
std::string read_scalar(const Node& node, std::uint64_t& value);
std::string read_scalar(const Node& node, double& value);
std::string read_scalar(const Node& node, std::string& value);
std::string read_scalar(const Node& node, ShardingGroup& value);
std::string read_scalar(const Node& node, FactorFormat& value);
std::string read_scalar(const Node& node, FormatElement& value);
std::string read_scalar(const Node& node, FormatBlock& value);
template <Choice E> std::string read_scalar(const Node& node, E& value) {
  const auto choice = node.kind == Node::Kind::scalar ? choice_named<E>(node.text) : std::nullopt;
  if (!choice) return shown(node) + " is none of the choices";
  value = *choice;
  return "";
}

}  // namespace tessera
