#pragma once
#include <string>

namespace tessera {

/// Head of an HTML page that needs nothing else, from its begin to its headline: style for light and dark, wide screens
/// and phones. `rules`: further CSS.
std::string html_head(const std::string& title, const std::string& rules = "");

}  // namespace tessera
