#pragma once
#include <optional>
#include <string>
#include <vector>

#include "io/metrics/routing_row.hpp"
#include "io/report/svg_plot.hpp"

namespace tessera {

/// The plots of a run's routing. Heat maps show the last recorded step's loads by layer and expert, and the busiest
/// expert's by step and layer. Lines show the loads' unevenness, the bias, and what evaluations keep of the choices of
/// those before. Empty without rows. Pure.
std::string routing_plots(const std::vector<RoutingRow>& rows, const std::vector<KeptRow>& kept, const Marks& marks,
                          const std::optional<Span>& span);

}  // namespace tessera
