#include "io/report/svg_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {
namespace {

constexpr double width = 440, height = 264, left = 60, right = 12, top = 32, bottom = 40;
constexpr double plot_width = width - left - right, plot_height = height - top - bottom;
constexpr double letter = 7.7;  // width of a tick's letter in the widest of the usual fonts

/// A tick's text, with the digits that tell it from one that is `gap` away.
std::string number(double x, double gap) {
  const double spread = x != 0 && gap > 0 ? std::floor(std::log10(std::abs(x))) - std::floor(std::log10(gap)) : 0;
  const int digits = std::clamp(static_cast<int>(spread) + 1, 4, 7);
  if (!(std::abs(x) >= 1e4)) return fmt::format("{:.{}g}", x, digits);
  const char* units = "kMGTPE";
  for (x /= 1e3; std::abs(x) >= 1e3 && units[1] != 0; x /= 1e3) ++units;
  return fmt::format("{:.{}g}{}", x, digits, *units);
}

std::string head(const std::string& title, const std::string& unit, double tall, double begin = left) {
  return fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n<text class=\"title\" x=\"{}\" y=\"18\">{}"
      "<tspan class=\"unit\" dx=\"8\">{}</tspan></text>\n",
      width, tall, escaped(title), begin, escaped(title), escaped(unit));
}

/// An axis of a plot: maps values to positions.
struct Axis {
  double low, high, begin, length;
  Scale scale = Scale::linear;

  double measure(double x) const { return scale == Scale::log ? std::log10(x) : x; }
  bool shows(double x) const { return std::isfinite(x) && (scale == Scale::linear || x > 0); }
  double position(double x) const { return begin + length * (measure(x) - low) / (high - low); }
  std::vector<double> ticks(int most) const {
    if (scale == Scale::linear) return round_ticks(low, high, most);
    std::vector<double> found;
    for (double power = std::floor(low); power <= high; ++power)
      for (double times : {1.0, 2.0, 5.0}) {
        const double tick = times * std::pow(10, power);
        const bool within = measure(tick) >= low && measure(tick) <= high;
        if (within && (times == 1 || high - low < 3)) found.push_back(tick);
      }
    return found.size() > 1 ? found : round_ticks(std::pow(10, low), std::pow(10, high), most);
  }
};

std::optional<Axis> axis_over(const std::vector<Series>& series, std::vector<double> Series::*part, Scale scale,
                              double begin, double length, const std::optional<Span>& span = {}) {
  Axis axis{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), begin, length, scale};
  for (const Series& line : series)
    for (std::size_t i = 0; i < line.values.size(); ++i) {
      const double x = (line.*part)[i];
      if (!axis.shows(x) || !std::isfinite(line.values[i])) continue;
      axis.low = std::min(axis.low, axis.measure(x));
      axis.high = std::max(axis.high, axis.measure(x));
    }
  if (!(axis.low <= axis.high)) return std::nullopt;
  if (span) axis.low = span->first, axis.high = span->last;
  if (axis.high > axis.low) return axis;
  // One value alone: round a step its neighbours, round a value a tenth of it, and above zero one.
  const double room = part == &Series::steps ? 0.5 : std::abs(axis.high) * 0.1;
  axis.low -= room;
  axis.high += room > 0 ? room : 1;
  return axis;
}

/// Indices of the points to draw: of points in the same pixel column the least and the greatest, in their order. A
/// point that is not shown is kept, since it makes a gap.
std::vector<std::size_t> kept_points(const Series& line, const Axis& x, const Axis& y) {
  std::vector<std::size_t> kept;
  const std::size_t n = line.values.size();
  const auto column = [&](std::size_t i) {
    return y.shows(line.values[i]) ? std::floor(x.position(line.steps[i])) : -1;
  };
  for (std::size_t i = 0, end; i < n; i = end) {
    std::size_t least = i, most = i;
    for (end = i + 1; end < n && column(end) == column(i) && column(i) >= 0; ++end) {
      if (line.values[end] < line.values[least]) least = end;
      if (line.values[end] > line.values[most]) most = end;
    }
    kept.push_back(std::min(least, most));
    if (least != most) kept.push_back(std::max(least, most));
  }
  return kept;
}

/// Vertical lines of `length` from the foot of the plot, at those of `steps` that it shows.
std::string marks_at(const std::vector<double>& steps, const char* name, double length, const Axis& x) {
  std::string path;
  for (const double step : steps)
    if (x.shows(step) && x.position(step) >= left && x.position(step) <= left + plot_width)
      path += fmt::format("M{:.1f} {}v{}", x.position(step), top + plot_height, -length);
  return path.empty() ? "" : fmt::format("<path class=\"{0}\" d=\"{1}\"><title>{0}</title></path>\n", name, path);
}

std::string path_of(const Series& line, const Axis& x, const Axis& y) {
  std::string path;
  bool drawing = false;
  for (std::size_t i : kept_points(line, x, y)) {
    const bool shown = y.shows(line.values[i]);
    // A single point is a line of length zero, which round line caps show as a dot.
    if (shown)
      path += fmt::format(fmt::runtime(drawing ? "L{:.1f} {:.1f}" : "M{:.1f} {:.1f}h0"), x.position(line.steps[i]),
                          y.position(line.values[i]));
    drawing = shown;
  }
  return path;
}

/// The area of a series' band; empty without one.
std::string band_of(const Series& line, const Axis& x, const Axis& y) {
  std::string path, back;
  for (std::size_t i = 0; i < line.above.size(); ++i) {
    if (!y.shows(line.above[i]) || !y.shows(line.below[i])) continue;
    const double at = x.position(line.steps[i]);
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", at, y.position(line.above[i]));
    back = fmt::format("L{:.1f} {:.1f}", at, y.position(line.below[i])) + back;
  }
  return path.empty() ? "" : path + back + "Z";
}

/// The series, and those of the edges of their bands.
std::vector<Series> with_edges(const std::vector<Series>& series) {
  std::vector<Series> all = series;
  for (const Series& line : series)
    for (const std::vector<double>& edge : {line.below, line.above})
      if (!edge.empty()) all.push_back({line.name, line.steps, edge, {}, {}});
  return all;
}

double gap_of(const std::vector<double>& ticks) { return ticks.size() > 1 ? ticks[1] - ticks[0] : 0; }

/// A tick's text at the foot: centred, but whole where the page ends.
std::string foot_text(double at, const std::string& text) {
  const bool centred = at + letter * static_cast<double>(text.size()) / 2 < width;
  return fmt::format("<text class=\"tick\" text-anchor=\"{}\" x=\"{:.1f}\" y=\"{}\">{}</text>\n",
                     centred ? "middle" : "end", centred ? at : width - 1, height - bottom + 18, text);
}

std::string grid(const Axis& x, const Axis& y) {
  std::string svg;
  const std::vector<double> beside = y.ticks(5), below = x.ticks(6);
  for (double tick : beside) {
    const std::string text = number(tick, gap_of(beside));
    const bool fits = letter * static_cast<double>(text.size()) < left - 8;  // else its letters are made narrower
    svg += fmt::format(
        "<path class=\"grid\" d=\"M{} {:.1f}h{}\"/><text class=\"tick\" text-anchor=\"end\" x=\"{}\" "
        "y=\"{:.1f}\"{}>{}</text>\n",
        left, y.position(tick), plot_width, left - 8, y.position(tick) + 4,
        fits ? "" : fmt::format(" textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\"", left - 9), text);
  }
  for (double tick : below)
    if (tick == std::floor(tick)) svg += foot_text(x.position(tick), number(tick, gap_of(below)));
  return svg + fmt::format("<text class=\"tick\" text-anchor=\"middle\" x=\"{}\" y=\"{}\">step</text>\n",
                           left + plot_width / 2, height - 8);
}

/// Legend to the right of the title; empty if the names have no room there.
std::string legend(const std::string& title, const std::vector<Series>& series) {
  double room = width - right - left - 8.0 * static_cast<double>(title.size());
  for (const Series& line : series) room -= 7.0 * static_cast<double>(line.name.size()) + 40;
  if (series.size() < 2 || room < 0) return "";
  std::string svg;
  double end = width - right;
  for (std::size_t i = series.size(); i-- > 0;) {
    const double words = 7.0 * static_cast<double>(series[i].name.size());
    svg += fmt::format(
        "<text class=\"tick\" text-anchor=\"end\" x=\"{:.0f}\" y=\"18\">{}</text><path class=\"s{}\" d=\"M{:.0f} "
        "14h16\"/>\n",
        end, escaped(series[i].name), i, end - words - 22);
    end -= words + 40;
  }
  return svg;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::vector<double> round_ticks(double low, double high, int most) {
  const double wish = (high - low) / most, power = std::pow(10, std::floor(std::log10(wish)));
  double gap = 10 * power;
  for (double times : {5.0, 2.0, 1.0})
    if (times * power >= wish) gap = times * power;
  std::vector<double> ticks;
  for (double k = std::ceil(low / gap); k * gap <= high + 1e-9 * gap; ++k) ticks.push_back(k * gap + 0.0);  // no -0
  return ticks;
}

std::string line_plot(const std::string& title, const std::string& unit, const std::vector<Series>& series, Scale scale,
                      const Marks& marks, const std::optional<Span>& span) {
  const auto x = axis_over(series, &Series::steps, Scale::linear, left, plot_width, span);
  const auto y = axis_over(with_edges(series), &Series::values, scale, top + plot_height, -plot_height);
  if (!x || !y) return "";
  const char* const gap = unit.empty() ? "" : ", ";
  const std::string units = unit + (scale == Scale::log ? gap + std::string("log scale") : "");
  std::string svg = head(title, units, height);
  svg += grid(*x, *y) + marks_at(marks.restarts, "restart", plot_height, *x);
  svg += marks_at(marks.removed, "removed", 8, *x) + marks_at(marks.saves, "save", 8, *x);
  svg += legend(title + units, series);
  for (std::size_t i = 0; i < series.size(); ++i)
    if (const std::string band = band_of(series[i], *x, *y); !band.empty())
      svg += fmt::format("<path class=\"band b{}\" d=\"{}\"/>\n", i, band);
  for (std::size_t i = 0; i < series.size(); ++i)
    svg += fmt::format("<path class=\"s{}\" d=\"{}\"><title>{}</title></path>\n", i, path_of(series[i], *x, *y),
                       escaped(series[i].name));
  return svg + "</svg>\n";
}

std::string bar_plot(const std::string& title, const std::string& of, const std::vector<Bar>& bars) {
  double most = 0, letters = 0;
  std::vector<std::string> texts;
  for (const Bar& bar : bars) {
    most = std::max(most, bar.most);
    texts.push_back(fmt::format("{:.3f} s ({:.3f} to {:.3f})", bar.mean, bar.least, bar.most));
    letters = std::max(letters, static_cast<double>(texts.back().size()));
  }
  if (!(most > 0)) return "";
  constexpr double row = 22, label = 100;
  const double scale = (width - label - 7 * letters) / most;
  std::string svg = head(title, of, top + row * static_cast<double>(bars.size()), 8);
  double y = top;
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const Bar& bar = bars[i];
    const double middle = y + row / 2 - 3;
    svg += fmt::format("<text class=\"tick\" text-anchor=\"end\" x=\"{}\" y=\"{:.1f}\">{}</text>", label - 8,
                       middle + 4, escaped(bar.name));
    svg += fmt::format("<rect class=\"bar\" x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"12\" rx=\"2\"/>", label,
                       middle - 6, bar.mean * scale);
    svg += fmt::format("<path class=\"range\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>", label + bar.least * scale, middle,
                       label + bar.most * scale);
    svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", label + bar.most * scale + 8,
                       middle + 4, texts[i]);
    y += row;
  }
  return svg + "</svg>\n";
}

}  // namespace tessera
