#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/runtime.hpp"
#include "kernels/quantize/host_shard.hpp"
#include "tests/reference/quantize.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/quantized.hpp"

/// Partial casts: what ranks make from their parts of sharded masters, gathered, equals what one rank makes of the
/// whole.
namespace tessera {
namespace {

using formats::Matrix;
using test::Guarded;
using test::GuardedCopy;

// Weights of one model, and the flat numbering over all of them in which ranks own ranges.
struct Weight {
  Matrix matrix;
  std::int64_t members = 1;
  std::int64_t elements() const { return matrix.elements() * members; }
};
const std::vector<Weight>& weights() {
  static const std::vector<Weight> list = {{{32, 96}}, {{160, 288}, 2}, {{0, 32}},
                                           {{16, 32}}, {{128, 160}, 3}, {{48, 64}}};
  return list;
}
template <class F>
std::vector<Weight> suitable() {
  std::vector<Weight> list;
  for (const Weight& w : weights())
    if (formats::takes<F>(Side::rowwise, w.matrix) && formats::takes<F>(Side::columnwise, w.matrix)) list.push_back(w);
  if (F::ragged) list.push_back({{129, 70}, 2});
  return list;
}

// One simulated rank: its own copies of every weight, poisoned, and the range that it owns.
template <class F>
struct Rank {
  std::vector<GuardedCopy<F>> rowwise, columnwise;
  std::vector<QuantizedMatrix> items;
  std::vector<std::int64_t> first;  // flat index of each weight's first element
  std::int64_t begin, end;

  Rank(Device& device, const std::vector<Weight>& list, const std::vector<std::vector<float>>& masters,
       std::int64_t from, std::int64_t to)
      : begin(from), end(to) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Weight& w = list[i];
      rowwise.emplace_back(device, Side::rowwise, w.matrix, w.members);
      columnwise.emplace_back(device, Side::columnwise, w.matrix, w.members);
      QuantizedMatrix m;
      m.matrix = w.matrix;
      m.members = w.members;
      const std::int64_t low = std::clamp(from - at, std::int64_t{0}, w.elements()),
                         high = std::clamp(to - at, std::int64_t{0}, w.elements());
      m.begin = ElementIndex(low);
      m.values = test::on_device(device, std::vector<float>(masters[i].begin() + low, masters[i].begin() + high));
      m.rowwise = rowwise.back().copy();
      m.columnwise = columnwise.back().copy();
      if (F::columnwise == formats::Columnwise::shared) m.columnwise.data = m.rowwise.data;
      if (F::tensor_amax) m.columnwise.amax = m.rowwise.amax;
      items.push_back(m);
      first.push_back(at);
      at += w.elements();
    }
  }
};

std::vector<std::uint16_t> max_over(const std::vector<std::vector<std::uint16_t>>& ranks) {
  std::vector<std::uint16_t> most = ranks.front();
  for (const auto& r : ranks)
    for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], r[i]);
  return most;
}

template <class F>
struct World {
  std::vector<Weight> list = suitable<F>();
  std::vector<std::vector<float>> masters;
  std::int64_t total = 0;

  explicit World(std::uint64_t seed) {
    for (const Weight& w : list) {
      masters.push_back(test::wild(w.elements(), seed, seed % 3 == 0));
      ++seed;
      total += w.elements();
    }
  }
};

// Expected copies: one whole weight quantized, members packed.
template <class F>
struct Whole {
  std::vector<std::uint8_t> data[2];
  std::vector<typename F::Scale> scales[2];
  std::vector<float> amax;

  Whole(const Weight& w, const std::vector<float>& master) {
    for (std::int64_t e = 0; e < w.members; ++e) {
      const auto begin = master.begin() + e * w.matrix.elements();
      const auto x = reference::rounded_to_bf16({begin, begin + w.matrix.elements()});
      for (int s = 0; s < 2; ++s) {
        const auto copy = reference::quantize<F>(static_cast<Side>(s), w.matrix, x);
        data[s].insert(data[s].end(), copy.data.begin(), copy.data.end());
        scales[s].insert(scales[s].end(), copy.scales.begin(), copy.scales.end());
        if (s == 0) amax.push_back(copy.amaxes.front());
      }
    }
  }
};

// Computes the maximum of amaxes over ranks, then casts on every rank.
template <class F>
void cast(Device& device, std::vector<QuantizeTable>& tables) {
  Stream& stream = device.compute();
  std::vector<Tensor> amaxes;
  std::vector<std::vector<std::uint16_t>> local;
  for (const QuantizeTable& table : tables) {
    amaxes.push_back(test::poisoned(device, DType::bf16, {table.amax_entries()}));
    const Tensor bits{amaxes.back().data, DType::u16, amaxes.back().shape};
    if constexpr (F::agreement != formats::Agreement::nothing) {
      block_amax(stream, table, amaxes.back());
      local.push_back(test::on_host<std::uint16_t>(device, bits));
    }
  }
  for (std::size_t r = 0; r < tables.size(); ++r) {
    if (!local.empty()) device.upload(stream, amaxes[r], max_over(local).data());
    partial_cast(stream, tables[r], amaxes[r]);
  }
}

// Casts, checks what each rank wrote and did not write, gathers, derives; then compares the copies with those of the
// whole.
template <class F>
void run(Device& device, const World<F>& world, const std::vector<std::int64_t>& cuts) {
  std::vector<Rank<F>> ranks;
  std::vector<QuantizeTable> tables;
  for (std::size_t r = 0; r + 1 < cuts.size(); ++r) {
    ranks.emplace_back(device, world.list, world.masters, cuts[r], cuts[r + 1]);
    tables.push_back(test::placed(device, formats::id_of<F>, ranks.back().items));
  }
  cast<F>(device, tables);
  for (std::size_t i = 0; i < world.list.size(); ++i) {
    const Weight& w = world.list[i];
    if (w.elements() == 0) continue;
    const Whole<F> whole(w, world.masters[i]);
    // Expects that a rank wrote exactly its part of the whole: every other nibble is still poison.
    for (const Rank<F>& rank : ranks) {
      const auto bytes = rank.rowwise[i].data.bytes(device);
      std::vector<std::uint8_t> expected(bytes.size(), 0xFF);
      const std::int64_t from = std::max<std::int64_t>(rank.begin - rank.first[i], 0);
      for (std::int64_t p = from; p < std::min(rank.end - rank.first[i], w.elements()); ++p)
        reference::put_code<F>(expected, p, reference::get_code<F>(whole.data[0], p));
      ASSERT_TRUE(test::same_bits(bytes, expected)) << F::name << " [" << rank.begin << "," << rank.end << ") " << i;
      ASSERT_TRUE(rank.rowwise[i].untouched(device) && rank.columnwise[i].untouched(device));
      if (F::tensor_amax) {
        const auto amaxes = test::on_host<float>(device, rank.rowwise[i].amax.inner);
        ASSERT_TRUE(test::same_bits(amaxes, whole.amax)) << F::name;
      }
      if (!F::scaled) continue;
      const auto scales = test::on_host<typename F::Scale>(device, rank.rowwise[i].scales.inner);
      ASSERT_TRUE(test::same_bits(scales, whole.scales[0])) << F::name;
    }
    const Tensor data = ranks[0].rowwise[i].data.inner;
    device.upload(device.compute(), {data.data, DType::u8, Shape{data.bytes()}}, whole.data[0].data());
  }
  build_columnwise(device.compute(), tables[0]);
  for (std::size_t i = 0; i < world.list.size(); ++i) {
    if (world.list[i].elements() == 0 || formats::is_plain<F>) continue;
    const Whole<F> whole(world.list[i], world.masters[i]);
    const GuardedCopy<F>& made = ranks[0].columnwise[i];
    if (F::scaled) {
      const auto scales = test::on_host<typename F::Scale>(device, made.scales.inner);
      ASSERT_TRUE(test::same_bits(scales, whole.scales[1])) << F::name;
    }
    if (F::columnwise == formats::Columnwise::transposed) {
      ASSERT_TRUE(test::same_bits(made.data.bytes(device), whole.data[1])) << F::name;
    }
    ASSERT_TRUE(made.untouched(device));
  }
}

std::vector<std::int64_t> random_cuts(std::int64_t total, int ranks, std::mt19937_64& bits) {
  std::vector<std::int64_t> cuts{0, total};
  for (int i = 1; i < ranks; ++i) {
    const auto at = static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(total + 1));
    cuts.push_back(at);
    if (i % 3 == 0) cuts.back() = cuts[cuts.size() - 2] + static_cast<std::int64_t>(bits() % 3);  // length 0, 1 or 2
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.resize(static_cast<std::size_t>(ranks + 1));
  cuts.back() = total;
  return cuts;
}

template <class F>
struct PartialCast : ::testing::Test {
  Device device;
};
using Sharded = ::testing::Types<formats::Bf16, formats::Fp8Block, formats::Mxfp8Tiles, formats::Nvfp4,
                                 formats::Fp8Tensor, formats::Fp8TensorE5m2, formats::Mxfp6E3m2Tiles,
                                 formats::Mxfp6E2m3Tiles, formats::Mxfp4Tiles>;
TYPED_TEST_SUITE(PartialCast, Sharded);

// Checks that the types above are all formats that can be cast in shards with any cuts. Of others both copies travel,
// or whole blocks alone.
template <class... F>
constexpr int castable(formats::FormatList<F...>) {
  return ((F::columnwise != formats::Columnwise::requantized && !formats::chooses<F>) + ...);
}
static_assert(castable(formats::Registry{}) == 9, "list the new format in Sharded");

template <class F>
struct PartialCastOfBlocks : PartialCast<F> {};
using ShardedBlocks =
    ::testing::Types<formats::Fp8Block, formats::Mxfp8Tiles, formats::Nvfp4, formats::Mxfp6E3m2Tiles,
                     formats::Mxfp6E2m3Tiles, formats::Mxfp4Tiles, formats::Nvfp4FourOverSix>;
TYPED_TEST_SUITE(PartialCastOfBlocks, ShardedBlocks);

TYPED_TEST(PartialCast, GatheredPartsAreTheWhole) {
  const World<TypeParam> world(17);
  std::mt19937_64 bits(4);
  for (int ranks = 1; ranks <= 8; ++ranks) run<TypeParam>(this->device, world, random_cuts(world.total, ranks, bits));
}

TYPED_TEST(PartialCast, CutsInsideOneTileAndOddOnes) {
  const World<TypeParam> world(23);
  const std::int64_t t = world.total;
  run<TypeParam>(this->device, world, {0, 0, 1, 2, 5, 5, 38, t - 1, t});
  run<TypeParam>(this->device, world, {0, 3072, 3073, 3072 + 288, 3072 + 577, t / 2, t, t, t});
}

TYPED_TEST(PartialCastOfBlocks, ScalesThatTravelAreExpandedByBuildColumnwise) {
  using F = TypeParam;
  const Matrix m{384, 256};
  const auto x = test::wild(2 * m.elements(), 31, false);
  const Matrix grid = formats::blocks<F>(Side::rowwise, m);
  Guarded block_scales(this->device, dtype_of<typename F::Scale>, 2 * grid.elements());
  GuardedCopy<F> row(this->device, Side::rowwise, m, 2), column(this->device, Side::columnwise, m, 2);
  const std::int64_t cut = 512 * 256, total = 2 * m.elements();  // a tile row of the second member
  std::vector<QuantizeTable> tables;
  std::vector<Tensor> amaxes;
  for (int r = 0; r < 2; ++r) {
    QuantizedMatrix item;
    item.matrix = m;
    item.members = 2;
    item.begin = ElementIndex(r == 0 ? 0 : cut);
    item.values = test::on_device(
        this->device, std::vector<float>(x.begin() + item.begin.value, x.begin() + (r == 0 ? cut : total)));
    item.rowwise = row.copy();
    item.columnwise = column.copy();
    if (F::columnwise == formats::Columnwise::shared) item.columnwise.data = item.rowwise.data;
    item.block_scales = block_scales.inner;
    tables.push_back(test::placed(this->device, formats::id_of<F>, {item}));
    amaxes.push_back(test::poisoned(this->device, DType::bf16, {tables.back().amax_entries()}));
    block_amax(this->device.compute(), tables.back(), amaxes.back());
  }
  // Blocks have one owner, so ranks agree only on the members' amaxes.
  const std::int64_t blocks = tables[0].block_entries(), members = tables[0].member_entries();
  if (members > 0) {
    std::vector<std::vector<std::uint16_t>> local;
    for (const Tensor& a : amaxes) {
      const Tensor part = a.flat(blocks, members);
      local.push_back(test::on_host<std::uint16_t>(this->device, {part.data, DType::u16, part.shape}));
    }
    for (const Tensor& a : amaxes)
      this->device.upload(this->device.compute(), a.flat(blocks, members), max_over(local).data());
  }
  for (int r = 0; r < 2; ++r)
    partial_cast(this->device.compute(), tables[static_cast<std::size_t>(r)], amaxes[static_cast<std::size_t>(r)]);
  build_columnwise(this->device.compute(), tables[0]);
  for (std::int64_t e = 0; e < 2; ++e)
    for (Side side : {Side::rowwise, Side::columnwise}) {
      const auto whole = reference::quantize<F>(
          side, m, reference::rounded_to_bf16({x.begin() + e * m.elements(), x.begin() + (e + 1) * m.elements()}));
      const GuardedCopy<F>& made = side == Side::rowwise ? row : column;
      const auto n = static_cast<std::int64_t>(whole.scales.size());
      EXPECT_TRUE(test::same_bits(test::on_host<typename F::Scale>(this->device, made.scales.inner.flat(e * n, n)),
                                  whole.scales))
          << F::name;
      if (side == Side::columnwise && F::columnwise == formats::Columnwise::shared) continue;
      const auto bytes = made.data.bytes(this->device);
      const auto size = static_cast<std::ptrdiff_t>(whole.data.size());
      EXPECT_TRUE(test::same_bits(std::vector<std::uint8_t>(bytes.begin() + e * size, bytes.begin() + (e + 1) * size),
                                  whole.data))
          << F::name;
    }
  EXPECT_TRUE(row.untouched(this->device) && column.untouched(this->device) && block_scales.untouched(this->device));
}

// A choice by errors needs whole blocks, and scales that other ranks cannot compute.
TEST(PartialCast, RefusesPartsOfBlocksWhoseErrorsDecide) {
  using F = formats::Nvfp4FourOverSix;
  Device device;
  const Matrix m{64, 96};
  const GuardedCopy<F> row(device, Side::rowwise, m, 1);
  const Guarded block_scales(device, DType::u8, formats::blocks<F>(Side::rowwise, m).elements());
  const auto cast_of = [&](std::int64_t begin, std::int64_t end, bool scales_travel) {
    QuantizedMatrix item;
    item.matrix = m;
    item.begin = ElementIndex(begin);
    item.values = test::on_device(device, std::vector<float>(static_cast<std::size_t>(end - begin), 1.0f));
    item.rowwise = row.copy();
    if (scales_travel) item.block_scales = block_scales.inner;
    const QuantizeTable table = test::placed(device, formats::id_of<F>, {item});
    const Tensor amaxes = test::on_device(device, std::vector<bf16>{bf16(1.0f)});
    partial_cast(device.compute(), table, amaxes);
  };
  EXPECT_NO_THROW(cast_of(0, m.elements(), false));
  EXPECT_NO_THROW(cast_of(16 * 96, 48 * 96, true));
  EXPECT_THROW(cast_of(16 * 96, 48 * 96, false), Error);
  EXPECT_THROW(cast_of(15 * 96, 48 * 96, true), Error);
  EXPECT_THROW(cast_of(0, 16 * 96 + 32, true), Error);
}

enum class Tables { one, two };

/// What a rank's cast writes of weights that are cut anywhere, whose scales every rank computes, and of a matrix that
/// it owns, whose scales travel.
template <class F>
std::vector<std::vector<std::uint8_t>> cast_beside_a_whole_matrix(Device& device, Tables tables) {
  const World<F> world(29);
  Rank<F> rank(device, world.list, world.masters, 5, world.total - 3);
  const Matrix m{128, 256};
  GuardedCopy<F> row(device, Side::rowwise, m, 1), column(device, Side::columnwise, m, 1);
  Guarded block_scales(device, dtype_of<typename F::Scale>, formats::blocks<F>(Side::rowwise, m).elements());
  QuantizedMatrix whole;
  whole.matrix = m;
  whole.members = 1;
  whole.values = test::on_device(device, test::wild(m.elements(), 31, false));
  whole.rowwise = row.copy();
  whole.columnwise = column.copy();
  if (F::columnwise == formats::Columnwise::shared) whole.columnwise.data = whole.rowwise.data;
  whole.block_scales = block_scales.inner;
  std::vector<std::vector<QuantizedMatrix>> parts = {rank.items};
  if (tables == Tables::two) parts.emplace_back();
  parts.back().push_back(whole);
  for (const auto& part : parts) {
    std::vector<QuantizeTable> table;
    table.push_back(test::placed(device, formats::id_of<F>, part));
    cast<F>(device, table);
  }
  std::vector<std::vector<std::uint8_t>> written = {row.data.bytes(device), block_scales.bytes(device)};
  for (const GuardedCopy<F>& copy : rank.rowwise) {
    written.push_back(copy.data.bytes(device));
    written.push_back(copy.scales.bytes(device));
  }
  return written;
}

TYPED_TEST(PartialCast, ScalesTravelBesideMatricesThatAreCutAnywhere) {
  if constexpr (TypeParam::scaled) {
    const auto one = cast_beside_a_whole_matrix<TypeParam>(this->device, Tables::one);
    EXPECT_EQ(one, cast_beside_a_whole_matrix<TypeParam>(this->device, Tables::two));
    for (const std::vector<std::uint8_t>& bytes : {one[0], one[1]})
      EXPECT_FALSE(std::ranges::all_of(bytes, [](std::uint8_t byte) { return byte == 0xFF; }));
  }
}

TYPED_TEST(PartialCast, GivesEqualBitsAHundredTimes) {
  using F = TypeParam;
  const Matrix m{160, 96};
  QuantizedMatrix item;
  item.matrix = m;
  item.members = 2;
  item.begin = ElementIndex(96 * 35 + 7);
  item.values = test::on_device(this->device, test::wild(m.elements() + 100, 14, true));
  const GuardedCopy<F> row(this->device, Side::rowwise, m, 2), column(this->device, Side::columnwise, m, 2);
  item.rowwise = row.copy();
  item.columnwise = column.copy();
  if (F::columnwise == formats::Columnwise::shared) item.columnwise.data = item.rowwise.data;
  const QuantizeTable table = test::placed(this->device, formats::id_of<F>, {item});
  const Tensor amaxes = test::poisoned(this->device, DType::bf16, {table.amax_entries()});
  std::vector<std::uint8_t> first;
  for (int run = 0; run < 100; ++run) {
    if constexpr (F::agreement != formats::Agreement::nothing) block_amax(this->device.compute(), table, amaxes);
    partial_cast(this->device.compute(), table, amaxes);
    build_columnwise(this->device.compute(), table);
    std::vector<std::uint8_t> bytes;
    for (const Guarded* g : {&row.data, &row.scales, &column.data, &column.scales}) {
      const auto more = g->bytes(this->device);
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    if (run == 0) first = bytes;
    ASSERT_TRUE(bytes == first) << run;
  }
}

TEST(PartialCast, KeepsTheOtherNibbleAsInTheGoldenCases) {
  Device device;
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../../oracle/formats.json");
  const auto golden = nlohmann::json::parse(file);
  const auto number = [](const nlohmann::json& hex) {
    return static_cast<std::uint32_t>(std::stoul(hex.get<std::string>(), nullptr, 16));
  };
  using F = formats::Nvfp4;
  for (const auto& c : golden.at("nibble_edge")) {
    const std::int64_t start = c["start"].get<std::int64_t>(), count = static_cast<std::int64_t>(c["codes"].size());
    // A tile whose amax is 6 of 2688 has scale 1, so that values are stored as they are.
    std::vector<float> values;
    for (const auto& code : c["codes"]) values.push_back(formats::E2M1::decode(number(code)));
    QuantizedMatrix m;
    m.matrix = {16, 16};
    m.begin = ElementIndex(start);
    m.values = test::on_device(device, values);
    const GuardedCopy<F> row(device, Side::rowwise, m.matrix, 1);
    m.rowwise = row.copy();
    std::vector<std::uint8_t> before(128, 0xAA);
    device.upload(device.compute(), row.data.inner, before.data());
    const QuantizeTable table = test::placed(device, formats::id_of<F>, {m});
    const Tensor amaxes = test::on_device(device, std::vector<bf16>{bf16(6.0f), bf16(2688.0f)});
    ASSERT_EQ(table.amax_entries(), 2);
    partial_cast(device.compute(), table, amaxes);
    const auto after = row.data.bytes(device);
    for (std::size_t i = 0; i < c["after"].size(); ++i)
      EXPECT_EQ(after[i], number(c["after"][i])) << start << " " << count;
    for (std::size_t i = c["after"].size(); i < after.size(); ++i) EXPECT_EQ(after[i], 0xAA);
  }
}

// A shard at positions far beyond 2^31: only its own memory exists, at its address within the whole weight.
TEST(PartialCast, FindsItsPlaceBeyond32Bits) {
  Device device;
  if (Runtime::back_end() == "Cuda") GTEST_SKIP() << "needs an address range that is not backed";
  using F = formats::Mxfp8Tiles;
  const Matrix m{std::int64_t{1} << 20, 4096};
  const std::int64_t begin = m.elements() - 3 * 4096 - 40, count = 4096 + 100;
  const auto x = test::wild(count, 3, false);
  Guarded data(device, DType::u8, count);
  quantizer::Descriptor d{};
  d.matrix = m;
  d.members = 1;
  d.stride = m.elements();
  const Tensor values = test::on_device(device, x);
  d.values = static_cast<std::byte*>(values.data);
  d.begin = begin;
  d.end = begin + count;
  d.patches = {m.rows / 128, m.columns / 128};
  d.first_patch_row = begin / m.columns / 128;
  d.first_block = -(d.first_patch_row * 4 * 128);  // only the last row of patches has amaxes
  d.side[0].data = static_cast<std::byte*>(data.inner.data) - begin;
  std::vector<std::uint16_t> amaxes(4 * 128, bf16(2.0f).bits);
  for (std::int32_t column = 0; column < d.patches.columns; ++column) {
    const quantizer::Patch p = quantizer::patch_of(d, {0, 0, static_cast<std::int32_t>(d.first_patch_row), column});
    quantizer::host::cast_owned<F, quantizer::FromMaster>(d, p, amaxes.data(), {});
  }
  const float multiplier = F::encoding(2.0f, {}).multiplier;
  std::vector<std::uint8_t> expected;
  for (float v : x) expected.push_back(static_cast<std::uint8_t>(F::Element::encode(float(bf16(v)) * multiplier)));
  EXPECT_TRUE(test::same_bits(data.bytes(device), expected));
  EXPECT_TRUE(data.untouched(device));
}

TEST(PartialCast, RefusesWhatTravelsAsBf16AndWrongAmaxes) {
  Device device;
  const auto table = [&](FormatId id, Matrix m, Tensor data, Tensor scales, Tensor amax) {
    QuantizedMatrix item;
    item.matrix = m;
    item.values = test::poisoned<float>(device, {m.rows, m.columns});
    item.rowwise = {data, scales, amax, {}};
    return test::placed(device, id, {item});
  };
  const Tensor bytes = test::poisoned<std::uint8_t>(device, {32 * 32}),
               scales = test::poisoned<std::uint8_t>(device, {128 * 4});
  const QuantizeTable mx = table(formats::id_of<formats::Mxfp8>, {32, 32}, bytes, scales, {});
  EXPECT_THROW(partial_cast(device.compute(), mx, test::poisoned(device, DType::bf16, {0})), Error);
  EXPECT_THROW(block_amax(device.compute(), mx, test::poisoned(device, DType::bf16, {0})), Error);
  EXPECT_THROW(build_columnwise(device.compute(), mx), Error);
  const QuantizeTable tiles = table(formats::id_of<formats::Mxfp8Tiles>, {32, 32}, bytes, scales, {});
  EXPECT_THROW(partial_cast(device.compute(), tiles, test::poisoned(device, DType::bf16, {2})), Error);
  EXPECT_THROW(partial_cast(device.compute(), tiles, test::poisoned<float>(device, {1})), Error);
}

TEST(PartialCast, RefusesToSendScalesOfBlocksThatAreCut) {
  Device device;
  const auto cast_from = [&](std::int64_t row) {
    QuantizedMatrix item;
    item.matrix = {64, 64};
    item.begin = ElementIndex(row * 64);
    item.values = test::on_device(device, std::vector<float>(static_cast<std::size_t>((64 - row) * 64), 1.0f));
    item.rowwise = {test::poisoned<std::uint8_t>(device, {64 * 64}), {}, {}, {}};
    item.block_scales = test::poisoned<std::uint8_t>(device, {4});
    const QuantizeTable table = test::placed(device, formats::id_of<formats::Mxfp8Tiles>, {item});
    const Tensor amaxes = test::poisoned(device, DType::bf16, {table.amax_entries()});
    block_amax(device.compute(), table, amaxes);
    partial_cast(device.compute(), table, amaxes);
  };
  EXPECT_THROW(cast_from(1), Error);
  EXPECT_NO_THROW(cast_from(32));
}

}  // namespace
}  // namespace tessera
