#pragma once
#include <span>
#include <vector>

namespace tessera::reference {

/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) and its derivative.
double gelu(double x);
double gelu_slope(double x);
/// x / (1 + e^-x) and its derivative.
double silu(double x);
double silu_slope(double x);

/// y [M,F] = silu(gate) up of gate_up [M,2F], gate first.
std::vector<double> swiglu_forward(std::span<const double> gate_up, std::size_t columns);
/// dgate_up [M,2F] from dy [M,F].
std::vector<double> swiglu_backward(std::span<const double> dy, std::span<const double> gate_up, std::size_t columns);

}  // namespace tessera::reference
