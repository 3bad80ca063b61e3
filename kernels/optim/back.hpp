#pragma once
#include "kernels/optim/adamw.hpp"

/// What a back end does faster than the portable kernel of adamw.cpp: false, with nothing done, where it does not.
namespace tessera::optim {

/// adamw_step() with its bits; arguments checked, on a stream that is not dry.
bool adamw_step(Stream& stream, const AdamWRule& rule, const Tensor& master, const Tensor& m, const Tensor& v,
                const Tensor& gradient, const AdamWClock* clock, const ClipResult* clip, const float* rate);

}  // namespace tessera::optim
