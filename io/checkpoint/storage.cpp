#include "io/checkpoint/storage.hpp"

#include <algorithm>

namespace tessera {
namespace {

/// Names in the order of Role.
constexpr const char* role_names[] = {"matrix", "expert", "embedding", "position", "head", "norm", "bias",
                                      "router", "router_bias", "router_load"};

}  // namespace

std::string expert_path(const std::string& path, std::int64_t expert) {
  const std::string inner = ".experts.";
  const std::size_t cut = path.find(inner);
  if (cut == std::string::npos) return "";
  return path.substr(0, cut + inner.size()) + std::to_string(expert) + "." + path.substr(cut + inner.size());
}

std::string axes_of(Role role, int rank) {
  if (is_counted(role)) return "expert";
  if (rank == 1) return "out";
  if (rank == 3) return "expert,out,in";
  switch (role) {
    case Role::embedding:
    case Role::head:
      return "vocabulary,hidden";
    case Role::position:
      return "position,hidden";
    case Role::router:
      return "expert,hidden";
    default:
      return "out,in";
  }
}

std::string name_of_role(Role role) { return role_names[static_cast<int>(role)]; }

std::optional<Role> role_named(const std::string& name) {
  const auto found = std::ranges::find(role_names, name);
  if (found == std::end(role_names)) return std::nullopt;
  return static_cast<Role>(found - std::begin(role_names));
}

}  // namespace tessera
