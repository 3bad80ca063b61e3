#include "io/report/heat_map.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "io/report/svg_plot.hpp"

namespace tessera {
namespace {

constexpr double width = 440, left = 60, right = 12, top = 32, bottom = 40, row_height = 12, least_name = 11;
constexpr double plot_width = width - left - right, most_height = 240;

constexpr std::array<double, 8> limits = {0.125, 0.25, 0.5, 0.8, 1.25, 2, 4, 8};  // between the shades
constexpr std::size_t even = 4;                                                   // the shade of values near 1

std::size_t shade_of(double value) {
  return static_cast<std::size_t>(std::ranges::upper_bound(limits, value) - limits.begin());
}

/// Colour of a shade: the farther from 1, the deeper.
std::string style_of(std::size_t shade) {
  const std::size_t far = shade > even ? shade - even : even - shade;
  return fmt::format("fill:var({});fill-opacity:{};stroke:none", shade > even ? "--s1" : "--s0",
                     0.25 * static_cast<double>(far));
}

}  // namespace

std::string heat_map(const HeatMap& map) {
  if (map.values.empty() || map.values.front().empty()) return "";
  const auto rows = static_cast<double>(map.values.size()), columns = static_cast<double>(map.values.front().size());
  const double tall = std::min(row_height, most_height / rows), wide = plot_width / columns;
  const double height = top + rows * tall + bottom;
  std::array<std::string, limits.size() + 1> paths;
  for (std::size_t r = 0; r < map.values.size(); ++r)
    for (std::size_t c = 0; c < map.values[r].size(); ++c) {
      const double value = map.values[r][c];
      if (!std::isfinite(value)) continue;
      paths[shade_of(value)] +=
          fmt::format("M{:.1f} {:.1f}h{:.2f}v{:.2f}h-{:.2f}z", left + wide * static_cast<double>(c),
                      top + tall * static_cast<double>(r), wide, tall, wide);
    }
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"{}\">\n<text class=\"title\" x=\"{}\" y=\"18\">{}"
      "<tspan class=\"unit\" dx=\"8\">{}</tspan></text>\n",
      width, height, escaped(map.title), left, escaped(map.title), escaped(map.unit));
  for (std::size_t shade = 0; shade < paths.size(); ++shade)
    if (shade != even && !paths[shade].empty())
      svg += fmt::format("<path class=\"h{}\" style=\"{}\" d=\"{}\"/>\n", shade, style_of(shade), paths[shade]);
  svg += fmt::format("<path class=\"grid\" d=\"M{} {}h{}v{:.1f}h-{}z\"/>\n", left, top, plot_width, rows * tall,
                     plot_width);
  const double foot = height - bottom + 18;
  const auto text = [&](const char* anchor, double x, double y, const std::string& words) {
    svg += fmt::format("<text class=\"tick\" text-anchor=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", anchor, x, y,
                       escaped(words));
  };
  const auto apart = static_cast<std::size_t>(std::ceil(least_name / tall));  // rows from name to name
  for (std::size_t r = 0; r < map.rows.size(); r += apart)
    text("end", left - 8, top + tall * (static_cast<double>(r) + 0.5) + 4, map.rows[r]);
  text("start", left, foot, map.first);
  text("end", width - right, foot, map.last);
  text("middle", left + plot_width / 2, foot, map.below);
  return svg + "</svg>\n";
}

}  // namespace tessera
