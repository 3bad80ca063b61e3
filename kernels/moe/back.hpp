#pragma once
#include "kernels/base/platform.hpp"
#include "kernels/moe/moe.hpp"

/// Pieces that the back ends share, and a back end's faster versions of the portable kernels in permute.cpp and
/// router.cpp, with arguments already checked. They return false, with nothing done, if there is none.
namespace tessera::moe {

/// The slot of a token whose row follows row `last`. Rows are sorted by expert, so this walks through experts upwards.
TESSERA_FN inline std::int64_t slot_after(std::int32_t last, const std::int32_t* rows, std::int64_t k) {
  std::int64_t next = -1;
  for (std::int64_t j = 0; j < k; ++j)
    if (rows[j] > last && (next < 0 || rows[j] < rows[next])) next = j;
  return next;
}

bool gather_rows(Stream& stream, const Tensor& x_rows, const Tensor& x, const Routing& routing);
/// y[m] = sum over the token's slots of weight (empty: 1) times row, experts ascending.
bool sum_slots(Stream& stream, const Tensor& y, const Tensor& y_rows, const Tensor& weights, const Routing& routing);
bool combine_backward(Stream& stream, const Tensor& dy_rows, const Tensor& dweight, const Tensor& dy,
                      const Tensor& y_rows, const Routing& routing);

bool router_forward(Stream& stream, const Tensor& logits, const Tensor& x, const Tensor& w);
bool router_input_gradient(Stream& stream, const Tensor& dx, const Tensor& dlogits, const Tensor& w);
/// Rows whose contributions to the router's weight gradient are summed by one work item.
inline constexpr std::int64_t rows_of_part = 256;
/// partial [ceil(rows / rows_of_part), E, C] = dlogits^T x of each part of the rows, in ascending order.
bool router_weight_partials(Stream& stream, const Tensor& partial, const Tensor& dlogits, const Tensor& x);

}  // namespace tessera::moe
