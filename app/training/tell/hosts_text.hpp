#pragma once
#include <cstdint>
#include <string>

#include "core/plan/plan.hpp"

namespace tessera {

/// Bytes that a rank receives in a step, by where they come from.
struct Received {
  double inside = 0;  ///< from ranks of its own host
  double across = 0;  ///< from other hosts, over the network: an upper bound, since libraries may pass on inside a host
};
/// Of a plan whose ranks are spread evenly over `hosts`, host by host. A collective's bytes come evenly from the ranks
/// of its process group. `hosts` must divide the ranks (else Error{internal}). Pure.
Received received_over(const RunPlan& plan, int hosts);

/// The same of the plan's rank or the first rank of the second sharding group, whichever receives more from other
/// hosts. No sums are passed on to the first group. Local.
Received most_received_over(const RunPlan& plan, int hosts);

/// The same as a line.
std::string hosts_text(const RunPlan& plan, int hosts);

/// The largest share of a rank in what ranks own by elements, over the mean; 1 if all own as much. Pure.
double largest_over_mean(const RunPlan& plan);

/// A line if the largest share is more than 1.1 of the mean, since memory and gradients of that rank follow it; else
/// empty.
std::string uneven_text(const RunPlan& plan);

}  // namespace tessera
