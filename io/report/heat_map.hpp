#pragma once
#include <string>
#include <vector>

namespace tessera {

/// A table of values around 1, by row and column; rows of equal length.
struct HeatMap {
  std::string title, unit;
  std::string below;                        ///< what columns are, under the map
  std::string first, last;                  ///< names of the first and the last column
  std::vector<std::string> rows;            ///< their names
  std::vector<std::vector<double>> values;  ///< by row, then column
};

/// An inline SVG of the map, without scripts. Cells have nine shades, by factors of about 2 from 1/8 to 8; those near 1
/// have no colour. Each shade has one path, so that many cells take few bytes. Rows' names are left out where they are
/// too many to be read. Empty without values. Pure.
std::string heat_map(const HeatMap& map);

}  // namespace tessera
