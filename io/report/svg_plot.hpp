#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// One line of a plot: values at some of the steps 1..n. A value that is not finite makes a gap.
struct Series {
  std::string name;
  std::vector<double> steps, values;  ///< steps ascending, as many as values
  std::vector<double> below = {}, above = {};  ///< a band round the values, one a value; empty: none
};

enum class Scale { linear, log };

/// Marks of a plot: steps after which a run was restarted. Steps after which it was saved, in a checkpoint that is
/// still there or one that has been removed.
struct Marks {
  std::vector<double> restarts, saves, removed;
};
/// The steps that a plot shows, so that the plots of a page begin and end alike.
struct Span {
  double first, last;
};

/// An inline SVG of values over steps with labelled axes, each series in its own colour (classes s0, s1, ... of the
/// page's style, and b0, b1, ... of bands). Several series are named in a legend if there is room. A series of more
/// points than the plot has pixel columns keeps the least and greatest value of each column. Restarts are dashed
/// vertical lines, saves short lines at the foot. Without `span` the axis has the steps of the series. Empty if no
/// value is finite (on a log scale: positive). Pure.
std::string line_plot(const std::string& title, const std::string& unit, const std::vector<Series>& series,
                      Scale scale = Scale::linear, const Marks& marks = {}, const std::optional<Span>& span = {});

/// A bar chart in seconds: for each name a bar to the mean, and a line from the least to the greatest. `of`: whose
/// seconds, behind the title. Pure.
struct Bar {
  std::string name;
  double least = 0, mean = 0, most = 0;
};
std::string bar_plot(const std::string& title, const std::string& of, const std::vector<Bar>& bars);

/// About `most` round numbers (1, 2 or 5 times a power of ten apart) within [low, high], low < high.
std::vector<double> round_ticks(double low, double high, int most);

/// Text with HTML's special characters escaped.
std::string escaped(std::string_view text);

}  // namespace tessera
