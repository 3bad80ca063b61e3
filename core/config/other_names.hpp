#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/config/section.hpp"

namespace tessera {

/// The rows of all sections. No name is a word of a deck's keys, unless with a section that has no such key.
const std::vector<OtherName>& other_names();

/// The entry of a name, whatever its case, hyphens and underscores: that of "section.name", else of the last word; null
/// if there is none.
const OtherName* find_other_name(std::string_view path);

/// The end of a message "...: unknown key" with what was probably meant: by those rows, else by edit distance;
/// empty if nothing is near.
std::string meant_by(std::string_view path);

}  // namespace tessera
