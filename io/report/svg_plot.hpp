#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// One line of a plot: a value at some of the steps 1..n. What is not finite is a gap.
struct Series {
  std::string name;
  std::vector<double> steps, values;  ///< steps ascending, as many as values
};

enum class Scale { linear, log };

/// Steps after which a run was started again, and that were saved.
struct Marks {
  std::vector<double> restarts, saves;
};

/// An inline SVG of values over steps with labelled axes, each series in its own colour (classes s0, s1, ... of the
/// page's style); several are named in a legend where it has room. A series of more points than the plot is wide keeps
/// the least and the greatest of each column. Restarts are dashed lines, saves short ones at the foot. Empty where no
/// value is finite (on a log scale: positive). Pure.
std::string line_plot(const std::string& title, const std::string& unit, const std::vector<Series>& series,
                      Scale scale = Scale::linear, const Marks& marks = {});

/// A bar of the mean for each name, with a line from the least to the greatest, in seconds. Pure.
struct Bar {
  std::string name;
  double least = 0, mean = 0, most = 0;
};
std::string bar_plot(const std::string& title, const std::vector<Bar>& bars);

/// About `most` round numbers (1, 2 or 5 times a power of ten apart) within [low, high], low < high.
std::vector<double> round_ticks(double low, double high, int most);

/// Text as HTML shows it.
std::string escaped(std::string_view text);

}  // namespace tessera
