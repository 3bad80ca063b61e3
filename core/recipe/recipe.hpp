#pragma once
#include <span>
#include <string_view>

#include "core/recipe/treatment.hpp"

namespace tessera {

/// A treatment with a name: one row of the table. To add a recipe, add a row; no other code asks for a recipe's name.
struct Recipe {
  std::string_view name;
  Treatment treatment;
};

/// The whole table.
std::span<const Recipe> recipes();

/// The row of that name; throws Error{internal} if there is none.
const Recipe& recipe_named(std::string_view name);

}  // namespace tessera
