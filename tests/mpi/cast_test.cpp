#include "core/params/cast.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <random>

#include "kernels/activation/activation.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/gemm/gemm.hpp"
#include "tests/reference/quantize.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/mpi.hpp"
#include "tests/support/quantized.hpp"

/// Tessera::cast in another trainer: every rank casts its part of the masters and gathers bytes, and then holds the
/// same weights as a single rank.
namespace tessera {
namespace {

using formats::Matrix;
using test::GuardedCopy;

using test::mpi;

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
    EXPECT_EQ(records.size(), 1u);  // one all-reduce for all weights
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

constexpr std::int64_t rows = 32;  // rows of a batch

/// One matrix of a stack: its fp32 master, and copies of format F that its products read.
template <class F>
class Trained {
 public:
  /// `sharded`: each rank owns a part of the master and bytes are gathered; else each rank quantizes the whole bf16
  /// weight.
  Trained(Device& device, Matrix matrix, std::uint64_t seed, bool sharded) : device_(device), matrix_(matrix) {
    const double deviation = 1 / std::sqrt(static_cast<double>(matrix.columns));
    master_ = test::uniform<float>(matrix.elements(), seed, -deviation, deviation);
    const std::int64_t units = matrix.elements() / 32, ranks = sharded ? mpi().size() : 1;
    for (std::int64_t r = 0; r <= ranks; ++r) cuts_.push_back(units * r / ranks * 32);
    const std::size_t mine = sharded ? static_cast<std::size_t>(mpi().rank()) : 0;
    begin_ = cuts_[mine];
    own_ = device.allocate(Category::masters, DType::f32, {cuts_[mine + 1] - begin_});
    for (Tensor& side : decoded_) side = device.allocate(Category::weights, DType::bf16, {matrix.elements()});
    y_ = device.allocate(Category::activations, DType::bf16, {rows, matrix.rows});
    dx_ = device.allocate(Category::activations, DType::bf16, {rows, matrix.columns});
    dw_ = device.allocate(Category::gradients, DType::f32, {matrix.rows, matrix.columns});
    place();
    send_master();
  }

  /// Moves the weights to new memory, as a trainer that changes its layout does; tables must then be made again.
  void place() {
    row_ = GuardedCopy<F>(device_, Side::rowwise, matrix_, 1);
    column_ = GuardedCopy<F>(device_, Side::columnwise, matrix_, 1);
    primary_ = device_.allocate(Category::weights, DType::bf16, {matrix_.elements()});
    for (const Side side : {Side::rowwise, Side::columnwise})
      decoding_[static_cast<std::size_t>(side)] =
          test::placed(device_, formats::id_of<F>, {whole(decoded_[static_cast<std::size_t>(side)])});
    quantizing_ = test::placed(device_, formats::id_of<F>, {whole(primary_)});
  }

  static constexpr bool apart = F::columnwise == formats::Columnwise::requantized;  ///< travels as bf16

  ShardedWeight given() const {
    ShardedWeight w{apart ? formats::id_of<formats::Bf16> : formats::id_of<F>, whole(own_)};
    w.matrix.begin = ElementIndex(begin_);
    if (apart) w.matrix.rowwise = {primary_, {}, {}, {}};
    if (apart) w.matrix.columnwise = {};
    return w;
  }
  Exchange gather() {
    begins_.clear();
    counts_.clear();
    const auto bytes = [](std::int64_t elements) { return apart ? 2 * elements : formats::data_bytes<F>(elements); };
    for (std::size_t r = 0; r + 1 < cuts_.size(); ++r) {
      begins_.push_back(bytes(cuts_[r]));
      counts_.push_back(bytes(cuts_[r + 1]) - begins_.back());
    }
    const Tensor& to = apart ? primary_ : row_.data.inner;
    return {{}, {to.data, DType::u8, Shape{to.bytes()}}, counts_, begins_};
  }
  void round() { convert(device_.compute(), primary_, own_); }
  void quantize_primary() { quantize(device_.compute(), *quantizing_); }
  void decode() {
    for (const Side side : {Side::rowwise, Side::columnwise})
      dequantize(device_.compute(), *decoding_[static_cast<std::size_t>(side)], side);
  }
  void descend(const std::vector<float>& gradient, float rate) {
    for (std::size_t i = 0; i < master_.size(); ++i) master_[i] -= rate * gradient[i];
    send_master();
  }

  Tensor forward(Stream& stream, const Tensor& x) {
    linear_forward(stream, y_, x, decoded_[0].view({matrix_.rows, matrix_.columns}));
    return y_;
  }
  Tensor input_gradient(Stream& stream, const Tensor& dy) {
    if constexpr (F::columnwise_order == formats::Order::transposed)
      linear_forward(stream, dx_, dy, decoded_[1].view({matrix_.columns, matrix_.rows}));
    else
      linear_input_gradient(stream, dx_, dy, decoded_[1].view({matrix_.rows, matrix_.columns}));
    return dx_;
  }
  std::vector<float> weight_gradient(Stream& stream, const Tensor& dy, const Tensor& x) {
    linear_weight_gradient(stream, {dw_}, dy, x);
    return test::on_host<float>(device_, dw_);
  }

 private:
  QuantizedMatrix whole(const Tensor& values) const {
    QuantizedMatrix m;
    m.name = F::name;
    m.matrix = matrix_;
    m.values = values;
    m.rowwise = row_.copy();
    m.columnwise = column_.copy();
    if (F::columnwise == formats::Columnwise::shared) m.columnwise.data = m.rowwise.data;
    if (F::tensor_amax) m.columnwise.amax = m.rowwise.amax;
    return m;
  }
  void send_master() { device_.upload(device_.compute(), own_, master_.data() + begin_); }

  Device& device_;
  Matrix matrix_;
  std::vector<float> master_;
  std::vector<std::int64_t> cuts_, counts_, begins_;
  std::int64_t begin_ = 0;
  Tensor own_, primary_, decoded_[2], y_, dx_, dw_;
  GuardedCopy<F> row_, column_;
  std::optional<QuantizeTable> decoding_[2], quantizing_;
};

enum class Storage { stays, moves, moves_under_old_tables };

/// A stack of linear layers, 128-320-768-128, that learns a fixed map by gradient descent.
template <class F>
struct Stack {
  Stack(Device& given, bool sharded) : device(given) {
    for (const Matrix& m : {Matrix{320, 128}, Matrix{768, 320}, Matrix{128, 768}})
      layers.emplace_back(device, m, static_cast<std::uint64_t>(m.rows), sharded);
    for (const std::int64_t width : {320, 768})
      activated.push_back(test::poisoned<bf16>(device, Shape{rows, width}));
  }

  /// Makes one step; returns the loss before it.
  double step() {
    Stream& stream = device.compute();
    const Tensor pre0 = layers[0].forward(stream, x);
    gelu_forward(stream, activated[0], pre0);
    const Tensor pre1 = layers[1].forward(stream, activated[0]);
    gelu_forward(stream, activated[1], pre1);
    std::vector<bf16> y = test::on_host<bf16>(device, layers[2].forward(stream, activated[1]));
    double loss = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const float error = static_cast<float>(y[i]) - static_cast<float>(target[i]);
      loss += double{error} * double{error};
      y[i] = bf16(error / rows);
    }
    device.upload(stream, dy, y.data());
    const Tensor d1 = layers[2].input_gradient(stream, dy);
    gelu_backward(stream, d1, d1, pre1);
    const Tensor d0 = layers[1].input_gradient(stream, d1);
    gelu_backward(stream, d0, d0, pre0);
    const std::vector<float> gradients[] = {layers[0].weight_gradient(stream, d0, x),
                                            layers[1].weight_gradient(stream, d1, activated[0]),
                                            layers[2].weight_gradient(stream, dy, activated[1])};
    for (std::size_t i = 0; i < layers.size(); ++i) layers[i].descend(gradients[i], 0.05f);
    return loss;
  }
  ShardedWeights tables() const {
    return {device, std::vector{layers[0].given(), layers[1].given(), layers[2].given()}};
  }

  Device& device;
  std::vector<Trained<F>> layers;
  std::vector<Tensor> activated;
  Tensor x = test::on_device(device, Shape{rows, 128}, test::uniform<bf16>(rows * 128, 1));
  Tensor dy = test::poisoned<bf16>(device, Shape{rows, 128});
  std::vector<bf16> target = test::uniform<bf16>(rows * 128, 2);
};

/// Losses with bf16 weights that are quantized at use.
template <class F>
std::vector<double> losses_at_use(std::int64_t steps) {
  Device device;
  Stack<F> stack(device, false);
  std::vector<double> all;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (Trained<F>& layer : stack.layers) {
      layer.round();
      layer.quantize_primary();
      layer.decode();
    }
    all.push_back(stack.step());
  }
  return all;
}

/// Losses with sharded masters: partial casts, all-gather, derived copies.
template <class F>
std::vector<double> losses_of_casts(std::int64_t steps, Storage storage = Storage::stays) {
  Device device;
  Stream& stream = device.compute();
  Mesh mesh = mpi().mesh(device, mpi().ranks(), std::chrono::seconds(300));
  Stack<F> stack(device, true);
  auto& layers = stack.layers;
  std::optional<ShardedWeights> weights(stack.tables());
  std::vector<double> all;
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step == 2 && storage != Storage::stays) {
      for (Trained<F>& layer : layers) layer.place();
      if (storage == Storage::moves) weights.emplace(stack.tables());
    }
    cast_master_weights(stream, *weights, mesh.world());
    const Exchange gathers[] = {layers[0].gather(), layers[1].gather(), layers[2].gather()};
    mesh.world().submit(stream, {Collective::all_gather, gathers, -1, "weights"}).wait(stream);
    build_columnwise(stream, *weights);
    for (Trained<F>& layer : layers) {
      if (Trained<F>::apart) layer.quantize_primary();
      layer.decode();
    }
    all.push_back(stack.step());
  }
  return all;
}

template <class F>
struct CastStack : ::testing::Test {};
using StackFormats = ::testing::Types<formats::Fp8Block, formats::Mxfp8, formats::Mxfp8Tiles, formats::Nvfp4,
                                      formats::Fp8Tensor, formats::Mxfp4, formats::Mxfp4Tiles>;
TYPED_TEST_SUITE(CastStack, StackFormats);

/// Number of steps; TESSERA_SOAK_STEPS raises it.
TYPED_TEST(CastStack, LearnsWhatWeightsQuantizedAtUseLearn) {
  const char* asked = std::getenv("TESSERA_SOAK_STEPS");
  const std::int64_t steps = asked ? std::atoll(asked) : 6;
  const std::vector<double> at_use = losses_at_use<TypeParam>(steps), cast = losses_of_casts<TypeParam>(steps);
  ASSERT_EQ(std::ssize(cast), steps);
  EXPECT_LT(at_use.back(), at_use.front());
  EXPECT_EQ(cast, at_use);
}

TYPED_TEST(CastStack, StorageThatMovesNeedsNewTables) {
  const std::vector<double> at_use = losses_at_use<TypeParam>(3);
  EXPECT_EQ(losses_of_casts<TypeParam>(3, Storage::moves), at_use);
  EXPECT_NE(losses_of_casts<TypeParam>(3, Storage::moves_under_old_tables), at_use);
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
