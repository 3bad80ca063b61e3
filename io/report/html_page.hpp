#pragma once
#include <string>

namespace tessera {

/// Beginning of a self-contained HTML page, up to its headline, with a style for light and dark, wide screens and
/// phones. `rules`: further CSS.
std::string html_head(const std::string& title, const std::string& rules = "");

}  // namespace tessera
