#pragma once
#include <cmath>
#include <optional>
#include <string>

#include "core/model/pass.hpp"

namespace tessera {

/// Standard deviations of initial matrices; those that write into the residual stream are scaled down with depth
/// (Radford 2019).
inline constexpr double initial_deviation = 0.02;
inline double residual_deviation(std::int64_t layers) {
  return initial_deviation / std::sqrt(2.0 * static_cast<double>(layers));
}
constexpr Start normal_start(double deviation) { return {Start::Kind::normal, deviation}; }

/// A parameter that is one whole dataset; `parts` and `part` as in ParamSpec.
inline ParamId add_whole(ParamRegistry& registry, const std::string& name, Shape shape, Role role, Start start,
                         const Shape& parts = {}, MatrixName part = MatrixName::other) {
  return registry.add({name, shape, 1, role, start, {name, shape, 0}, {}, parts, part});
}

/// A parameter that a layer may lack: empty then.
inline Use use_of(const Pass& pass, const std::optional<ParamId>& param) {
  return param ? pass.weights.operand(pass.stream, *param, Side::rowwise) : Use();
}

}  // namespace tessera
