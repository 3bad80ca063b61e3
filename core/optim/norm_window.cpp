#include "core/optim/norm_window.hpp"

#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "kernels/base/error.hpp"

namespace tessera {

void NormWindow::resume(std::vector<double> norms, std::int64_t newest) {
  norms_ = std::move(norms);
  newest_ = newest;
}

void NormWindow::add(float norm) {
  norms_.push_back(std::isfinite(norm) ? static_cast<double>(norm) : -1);
  if (norms_.size() > length + 1) norms_.erase(norms_.begin());
  ++newest_;
}

float NormWindow::limit(std::int64_t step, double deviations) const {
  require(step == newest_ + 1 || step == newest_ + 2, "NormWindow::limit", "asked for a step too early or too late");
  std::span<const double> window = norms_;
  if (step == newest_ + 1 && !window.empty()) window = window.first(window.size() - 1);
  if (window.size() < length) return std::numeric_limits<float>::infinity();
  double count = 0, sum = 0, squares = 0;
  for (const double norm : window.last(length)) {
    if (norm < 0) continue;
    ++count;
    sum += norm;
  }
  const double mean = sum / count;
  for (const double norm : window.last(length))
    if (norm >= 0) squares += (norm - mean) * (norm - mean);
  const double limit = mean + deviations * std::sqrt(squares / count);
  // If all norms are equal, the deviation is 0 and any other norm would be a spike: set no limit.
  return squares > 0 ? static_cast<float>(limit) : std::numeric_limits<float>::infinity();
}

}  // namespace tessera
