#include "core/params/cast.hpp"

#include <gtest/gtest.h>

#include <random>

#include "core/comm/mpi.hpp"
#include "kernels/reference/quantize.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/quantized.hpp"

/// Another trainer's weights: every rank casts its part of the masters, gathers bytes, and holds what one rank would.
namespace tessera {
namespace {

using formats::Matrix;
using test::GuardedCopy;

Mpi& mpi() {
  static Mpi* const instance = new Mpi(nullptr, nullptr);  // outlives MPI_Finalize, so it must not be destroyed
  return *instance;
}

// A weight of format F, cut at random multiples of 32 elements, the same on all ranks.
template <class F>
struct Weight {
  Matrix matrix;
  std::int64_t members;
  std::vector<float> master;
  std::vector<std::int64_t> counts, begins;  // bytes of each rank's part
  GuardedCopy<F> row, column;
  ShardedWeight given;

  Weight(Device& device, Matrix m, std::int64_t e, std::mt19937_64& bits)
      : matrix(m),
        members(e),
        master(test::wild(m.elements() * e, bits(), true)),
        row(device, Side::rowwise, m, e),
        column(device, Side::columnwise, m, e) {
    const std::int64_t units = m.elements() * e / 32;
    std::vector<std::int64_t> cuts{0, units};
    for (int r = 1; r < mpi().size(); ++r)
      cuts.push_back(static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(units + 1)));
    if (mpi().size() > 2) cuts[2] = 0;  // an empty part
    std::sort(cuts.begin(), cuts.end());
    for (int r = 0; r < mpi().size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      begins.push_back(formats::data_bytes<F>(cuts[i] * 32));
      counts.push_back(formats::data_bytes<F>(cuts[i + 1] * 32) - begins.back());
    }
    const auto mine = static_cast<std::size_t>(mpi().rank());
    given.format = formats::id_of<F>;
    given.matrix.name = F::name;
    given.matrix.matrix = m;
    given.matrix.members = e;
    given.matrix.begin = ElementIndex(cuts[mine] * 32);
    given.matrix.values = test::on_device(
        device, std::vector<float>(master.begin() + cuts[mine] * 32, master.begin() + cuts[mine + 1] * 32));
    given.matrix.rowwise = row.copy();
    given.matrix.columnwise = column.copy();
    if (F::columnwise == formats::Columnwise::shared) given.matrix.columnwise.data = given.matrix.rowwise.data;
    if (F::tensor_amax) given.matrix.columnwise.amax = given.matrix.rowwise.amax;
  }

  Exchange gather() const {
    const Tensor whole{row.data.inner.data, DType::u8, Shape{row.data.inner.bytes()}};
    return {{}, whole, counts, begins};
  }

  void compare(Device& device) const {
    std::vector<std::uint8_t> data[2];
    std::vector<typename F::Scale> scales[2];
    for (std::int64_t e = 0; e < members; ++e)
      for (Side side : {Side::rowwise, Side::columnwise}) {
        const auto copy =
            reference::quantize<F>(side, matrix,
                                   reference::rounded_to_bf16({master.begin() + e * matrix.elements(),
                                                               master.begin() + (e + 1) * matrix.elements()}));
        auto& d = data[static_cast<std::size_t>(side)];
        auto& s = scales[static_cast<std::size_t>(side)];
        d.insert(d.end(), copy.data.begin(), copy.data.end());
        s.insert(s.end(), copy.scales.begin(), copy.scales.end());
      }
    EXPECT_TRUE(test::same_bits(row.data.bytes(device), data[0])) << F::name;
    if (F::columnwise == formats::Columnwise::transposed) {
      EXPECT_TRUE(test::same_bits(column.data.bytes(device), data[1])) << F::name;
    }
    if (!F::scaled) return;
    EXPECT_TRUE(test::same_bits(test::on_host<typename F::Scale>(device, row.scales.inner), scales[0])) << F::name;
    EXPECT_TRUE(test::same_bits(test::on_host<typename F::Scale>(device, column.scales.inner), scales[1])) << F::name;
    EXPECT_TRUE(row.untouched(device) && column.untouched(device));
  }
};

TEST(CastMasterWeights, GivesEveryRankTheWholeForAnyCuts) {
  std::mt19937_64 bits(11);
  for (int round = 0; round < 4; ++round) {
    Device device;
    std::vector<Record> records;
    Mesh mesh = mpi().mesh(device, mpi().ranks(), std::chrono::seconds(300));
    mesh.wrap([&](std::unique_ptr<Communicator> one) { return recording(std::move(one), records); });
    const Weight<formats::Fp8Block> a(device, {160, 96}, 1, bits), b(device, {64, 288}, 2, bits);
    const Weight<formats::Mxfp8Tiles> c(device, {96, 160}, 3, bits);
    const Weight<formats::Nvfp4> d(device, {144, 64}, 2, bits), e(device, {16, 32}, 1, bits);
    const Weight<formats::Bf16> f(device, {33, 64}, 1, bits);
    const ShardedWeights weights(device, std::vector{a.given, c.given, d.given, f.given, b.given, e.given});
    cast_master_weights(device.compute(), weights, mesh.world());
    EXPECT_EQ(records.size(), 1u);  // one agreement on all of them
    const Exchange gathers[] = {a.gather(), b.gather(), c.gather(), d.gather(), e.gather(), f.gather()};
    mesh.world().submit(device.compute(), {Collective::all_gather, gathers, -1, "weights"}).wait(device.compute());
    build_columnwise(device.compute(), weights);
    a.compare(device);
    b.compare(device);
    c.compare(device);
    d.compare(device);
    e.compare(device);
    f.compare(device);
  }
}

TEST(CastMasterWeights, RefusesWhatTravelsAsBf16) {
  Device device;
  ShardedWeight w;
  w.format = formats::id_of<formats::Mxfp8>;
  w.matrix.name = "mlp.up";
  EXPECT_THROW(ShardedWeights(device, std::vector{w}), Error);
}

}  // namespace
}  // namespace tessera
