// Another trainer's step: each rank holds a flat shard of every fp32 master and wants all weights, quantized, on every
// rank. Compares what it gets with quantizing the whole masters on one rank, byte for byte.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include "core/comm/mpi.hpp"
#include "core/params/cast.hpp"
#include "kernels/base/runtime.hpp"

using namespace tessera;
using formats::Bf16, formats::Mxfp8, formats::Nvfp4, formats::id_of;

namespace {

constexpr formats::Matrix matrix{96, 160};  // [out, in]

/// The master that all ranks hold together; a trainer has its shard alone.
std::vector<float> whole_master() {
  std::vector<float> values(static_cast<std::size_t>(matrix.elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(0.37f * static_cast<float>(i)) / static_cast<float>(1 + i % 7);
  return values;
}

/// Where shards begin, in multiples of 32 elements, so that no byte of any format is split; then the end.
std::vector<std::int64_t> cuts(int ranks) {
  std::vector<std::int64_t> begins;
  for (int r = 0; r <= ranks; ++r) begins.push_back(matrix.elements() / 32 * r / ranks * 32);
  return begins;
}

/// A weight of format F on this rank: memory for both copies, whole.
template <class F>
QuantizedMatrix weight(Device& device, const char* name) {
  const auto make = [&](DType type, const Shape& shape) { return device.allocate(Category::weights, type, shape); };
  QuantizedMatrix w;
  w.name = name;
  w.matrix = matrix;
  for (Side side : {Side::rowwise, Side::columnwise}) {
    Copy& copy = side == Side::rowwise ? w.rowwise : w.columnwise;
    copy.data = make(traits_of<F>().data_type, formats::data_shape<F>(side, matrix));
    if (F::scaled) copy.scales = make(traits_of<F>().scale_type, formats::scale_shape<F>(side, matrix));
    if (F::tensor_amax) copy.amax = side == Side::rowwise ? make(DType::f32, {1}) : w.rowwise.amax;
  }
  if (F::columnwise == formats::Columnwise::shared) w.columnwise.data = w.rowwise.data;
  return w;
}

Tensor on_device(Device& device, const float* values, std::int64_t count) {
  const Tensor t = device.allocate(Category::masters, DType::f32, {count});
  if (count > 0) device.upload(device.compute(), t, values);
  return t;
}

/// Quantizes a weight of which this rank has all values, fp32 or bf16.
void quantize_whole(Device& device, FormatId format, QuantizedMatrix w, const Tensor& values) {
  w.values = values;
  QuantizeTable table(format, {&w, 1});  // once, where weights keep their addresses
  table.bind(device.allocate(Category::weights, DType::u8, {table.bytes()}));
  device.upload(device.compute(), table);
  quantize(device.compute(), table);
}

/// Every rank's part of the rowwise data, complete on all of them. A trainer gathers as it likes.
void gather(Stream& stream, Communicator& ranks, const Tensor& data, const std::vector<std::int64_t>& begins) {
  const std::int64_t of_entry = matrix.elements() / data.elements();  // elements of a byte, or of a bf16
  std::vector<std::int64_t> counts, displacements;
  for (std::size_t r = 0; r + 1 < begins.size(); ++r) {
    displacements.push_back(begins[r] / of_entry);
    counts.push_back(begins[r + 1] / of_entry - displacements.back());
  }
  const Exchange exchange{{}, data.flat(0, data.elements()), counts, displacements};
  ranks.submit(stream, {Collective::all_gather, {&exchange, 1}, -1, "weights"}).wait(stream);
}

bool same(Device& device, const Tensor& a, const Tensor& b) {
  std::vector<std::byte> left(static_cast<std::size_t>(a.bytes())), right(static_cast<std::size_t>(b.bytes()));
  device.download(device.compute(), left.data(), a);
  device.download(device.compute(), right.data(), b);
  return !left.empty() && left == right;
}

bool compare(Device& device, Communicator& ranks, const char* how, const QuantizedMatrix& a, const QuantizedMatrix& b) {
  const bool equal = same(device, a.rowwise.data, b.rowwise.data) && same(device, a.rowwise.scales, b.rowwise.scales) &&
                     same(device, a.columnwise.data, b.columnwise.data) &&
                     same(device, a.columnwise.scales, b.columnwise.scales);
  if (ranks.rank() == 0)
    std::printf("%s on %d ranks: %s\n", how, ranks.size(), equal ? "equal to quantizing the whole" : "DIFFERENT");
  return equal;
}

}  // namespace

int main(int argc, char** argv) {
  Mpi mpi(&argc, &argv);  // also after a trainer's own MPI_Init
  const auto gpus = static_cast<int>(Runtime::gpus().size());
  const Runtime runtime(0, gpus > 0 ? mpi.local_rank() % gpus : -1);
  Device device;
  Mesh mesh = mpi.mesh(device, mpi.ranks(), std::chrono::seconds(300));
  Communicator& ranks = mesh.world();
  Stream& stream = device.compute();

  const std::vector<float> master = whole_master();
  const std::vector<std::int64_t> begins = cuts(ranks.size());
  const auto mine = static_cast<std::size_t>(ranks.rank());
  const std::int64_t begin = begins[mine], count = begins[mine + 1] - begin;
  const Tensor shard = on_device(device, master.data() + begin, count);

  // Once: which part of which master this rank owns, and where the copies lie. The two copies of an MXFP8 weight are
  // two quantizations of its values, which therefore travel as bf16.
  ShardedWeight up{id_of<Nvfp4>, weight<Nvfp4>(device, "up")}, down{id_of<Bf16>, weight<Bf16>(device, "down")};
  for (ShardedWeight* one : {&up, &down}) {
    one->matrix.values = shard;
    one->matrix.begin = ElementIndex(begin);
  }
  const ShardedWeights weights(device, std::vector{up, down});
  const QuantizedMatrix mxfp8 = weight<Mxfp8>(device, "down");

  // Each step: one all-reduce for all weights, this rank's bytes, the gathers, and what follows from what was gathered.
  cast_master_weights(stream, weights, ranks);
  gather(stream, ranks, up.matrix.rowwise.data, begins);
  gather(stream, ranks, down.matrix.rowwise.data, begins);
  build_columnwise(stream, weights);
  quantize_whole(device, id_of<Mxfp8>, mxfp8, {down.matrix.rowwise.data.data, DType::bf16, {matrix.elements()}});

  // The same by a rank that has the whole master.
  const Tensor whole = on_device(device, master.data(), matrix.elements());
  const QuantizedMatrix nvfp4_whole = weight<Nvfp4>(device, "up"), mxfp8_whole = weight<Mxfp8>(device, "down");
  quantize_whole(device, id_of<Nvfp4>, nvfp4_whole, whole);
  quantize_whole(device, id_of<Mxfp8>, mxfp8_whole, whole);
  const bool gathered = compare(device, ranks, "mxfp8 gathered as bf16", mxfp8, mxfp8_whole);
  const bool cast = compare(device, ranks, "nvfp4 cast by shard", up.matrix, nvfp4_whole);
  return gathered && cast ? 0 : 1;
}
