#pragma once
#include <gtest/gtest.h>

#include "tests/reference/quantize.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/every_format.hpp"
#include "tests/support/quantized.hpp"

namespace tessera::test {

/// One matrix on the device with poisoned copies, and the copies that are expected.
template <class F>
struct Case {
  Matrix matrix;
  std::int64_t members;
  std::vector<float> values;
  GuardedCopy<F> rowwise, columnwise;
  bool has[2];
  QuantizedMatrix item;

  Case(Device& device, Matrix m, std::int64_t count, DType type, std::uint64_t seed, bool odd)
      : matrix(m),
        members(count),
        values(wild(m.elements() * count, seed, odd)),
        has{formats::takes<F>(Side::rowwise, m), formats::takes<F>(Side::columnwise, m)} {
    item.name = "case";
    item.matrix = m;
    item.members = count;
    if (type == DType::bf16) {
      std::vector<bf16> narrow;
      for (float v : values) narrow.push_back(bf16(v));
      item.values = on_device(device, {m.elements() * count}, narrow);
    } else {
      item.values = on_device(device, {m.elements() * count}, values);
    }
    if (has[0]) item.rowwise = (rowwise = GuardedCopy<F>(device, Side::rowwise, m, count)).copy();
    if (has[1]) item.columnwise = (columnwise = GuardedCopy<F>(device, Side::columnwise, m, count)).copy();
    if (F::columnwise == formats::Columnwise::shared) item.columnwise.data = item.rowwise.data;
  }

  std::vector<float> member(std::int64_t e) const {
    return {values.begin() + e * matrix.elements(), values.begin() + (e + 1) * matrix.elements()};
  }

  /// `seen`: a member's values as a side quantizes them.
  template <class Seen>
  void compare(Device& device, Side side, const Seen& seen, const std::vector<reference::DrawByte>& draws = {}) const {
    const GuardedCopy<F>& made = side == Side::rowwise ? rowwise : columnwise;
    std::vector<std::uint8_t> data;
    std::vector<typename F::Scale> scales;
    std::vector<float> amaxes;
    for (std::int64_t e = 0; e < members; ++e) {
      const auto copy = reference::quantize<F>(
          side, matrix, seen(member(e)), draws.empty() ? reference::DrawByte() : draws[static_cast<std::size_t>(e)]);
      data.insert(data.end(), copy.data.begin(), copy.data.end());
      scales.insert(scales.end(), copy.scales.begin(), copy.scales.end());
      amaxes.insert(amaxes.end(), copy.amaxes.begin(), copy.amaxes.end());
    }
    const std::string where =
        std::string(F::name) + " " + name_of(side) + " " + Shape{members, matrix.rows, matrix.columns}.text();
    if (side == Side::rowwise || F::columnwise != formats::Columnwise::shared) {
      EXPECT_TRUE(same_bits(made.data.bytes(device), data)) << where;
    }
    if (F::scaled) {
      EXPECT_TRUE(same_bits(on_host<typename F::Scale>(device, made.scales.inner), scales)) << where;
    }
    if (F::tensor_amax) {
      EXPECT_TRUE(same_bits(on_host<float>(device, made.amax.inner), amaxes)) << where;
    }
    EXPECT_TRUE(made.untouched(device)) << where;
  }
};

/// Sizes of every kind: whole blocks, parts of blocks, empty.
inline const std::vector<Matrix>& shapes() {
  static const std::vector<Matrix> all = [] {
    std::vector<Matrix> list;
    for (std::int64_t columns : {32, 48, 64, 96, 288, 2880})
      for (std::int64_t rows : {1, 16, 33, 127, 129, 160}) list.push_back({rows, columns});
    list.push_back({5, 7});
    list.push_back({0, 64});
    list.push_back({64, 0});
    return list;
  }();
  return all;
}

}  // namespace tessera::test
