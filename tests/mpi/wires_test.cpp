#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <random>

#include "core/params/param_sync.hpp"
#include "core/params/placed_table.hpp"
#include "kernels/formats/registry.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/contract.hpp"
#include "tests/support/delaying.hpp"
#include "tests/support/held_weights.hpp"
#include "tests/support/mpi.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/shown.hpp"

/// Weights held as codes. On every rank every stored byte equals that of quantizing the whole bf16 weight, for every
/// format, wire, cut and place of staging. Bytes that travel and launches are counted.
namespace tessera {
namespace {

using test::mpi;

/// A way in which weights of one format are cut, held and sent.
struct Case {
  FormatId format;
  OwnerKind owner;  ///< for matrices and experts
  GatherCuts cuts;
  SyncRules rules;

  std::string name() const {
    return std::string(traits_of(format).name) + " wire " + std::string(name_of(rules.weights.wire)) + " cuts " +
           std::string(name_of(cuts)) + " " + name_of(owner) + " staging " +
           std::string(name_of(rules.weights.staging)) + (rules.gather == Overlap::on ? " overlap" : "");
  }
  /// Whether each block has one owner.
  bool owns_blocks() const { return owner == OwnerKind::whole_matrix || cuts == GatherCuts::tile; }
  Travel travel() const { return travel_of({DType::bf16, format}, rules.weights); }
};

std::vector<FormatId> weight_formats() {
  return {formats::id_of<formats::Fp8Block>, formats::id_of<formats::Mxfp8>, formats::id_of<formats::Mxfp8Tiles>,
          formats::id_of<formats::Nvfp4>, formats::id_of<formats::Fp8Tensor>, formats::id_of<formats::Mxfp4>,
          formats::id_of<formats::Mxfp4Tiles>, formats::id_of<formats::Mxfp6E3m2Tiles>,
          formats::id_of<formats::Nvfp4FourOverSix>};
}

/// All legal cases.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const FormatId format : weight_formats())
    for (const GatherWire wire : {GatherWire::bf16, GatherWire::quantized})
      for (const auto& [owner, cuts] : {std::pair{OwnerKind::element_sharded, GatherCuts::flat},
                                        std::pair{OwnerKind::element_sharded, GatherCuts::tile},
                                        std::pair{OwnerKind::whole_matrix, GatherCuts::flat}})
        for (const GatherStaging staging : {GatherStaging::alias_grads, GatherStaging::ring}) {
          Case one{format, owner, cuts, {Overlap::on, Overlap::on, 1, ReduceOrder::rank, {}}};
          one.rules.weights = {PrimaryWeights::quantized, wire, staging};
          if (one.travel() == Travel::codes && staging == GatherStaging::ring) continue;  // nothing is staged
          if (one.travel() == Travel::codes && blocks_have_one_owner(format) && !one.owns_blocks()) continue;
          all.push_back(one);
        }
  return all;
}

/// Parameters: matrices whose blocks fill neither patches nor slices, experts, one weight that no pass touches, and
/// vectors. Formats that take any shape get odd shapes, with gaps between members.
ParamRegistry parameters(FormatId format) {
  ParamRegistry registry(TreatmentRules{{.weight = {format, format}}});
  const ParamRegistry::InBlock block(registry, 0);
  const auto add = [&](const std::string& name, Shape shape, int members, Role role) {
    const Shape canonical = members > 1 ? Shape{members, shape[0], shape[1]} : shape;
    registry.add({name, shape, members, role, {Start::Kind::normal, 0.5}, {name, canonical, 0}});
  };
  const bool ragged = traits_of(format).ragged;
  add("a", {96, 160}, 1, Role::matrix);
  add("a.bias", {17}, 1, Role::bias);
  add("experts", ragged ? Shape{7, 9} : Shape{64, 32}, 3, Role::expert);
  add("unused", {32, 64}, 1, Role::matrix);
  add("b", ragged ? Shape{300, 11} : Shape{224, 32}, 1, Role::matrix);
  add("more", {32, 96}, 2, Role::expert);
  add("c", {300}, 1, Role::norm);
  return registry;
}

Usage usage_of(const ParamRegistry& registry) {
  Usage usage;
  for (int p : {0, 4, 1, 2, 5, 6}) usage.training.push_back({{p}});
  for (int p = 0; p < registry.size(); ++p)
    if (registry[{p}].name != "unused") usage.contributions.push_back({{p}, 0});
  return usage;
}

LayoutRules layout_of(const Case& one, std::int64_t bucket_elements) {
  return {mpi().size(), mpi().size(), bucket_elements, one.owner, one.cuts};
}

struct Bench {
  Bench(const Case& one, std::int64_t bucket_elements, ParamRegistry given)
      : registry(std::move(given)),
        layout(ParamLayout::build(registry, layout_of(one, bucket_elements))),
        usage(usage_of(registry)),
        mesh(mpi().mesh(device, mpi().ranks(), std::chrono::seconds(300))),
        masters(device, layout, mesh.ranks()),
        sync(device, registry, layout, schedule_of({usage, registry, layout, mesh.ranks(), one.rules}), masters, mesh,
             one.rules) {
    mesh.wrap([&](std::unique_ptr<Communicator> inner) {
      return recording(test::contract(test::delaying(std::move(inner), 7, 100)), records);
    });
  }

  Stream& stream() { return device.compute(); }
  void publish(std::uint64_t number) {
    sync.publish(stream(), masters.initialise(stream(), registry, layout, mesh.ranks(), number));
  }
  void expect_weight(ParamId id, std::uint64_t number, const std::string& where) {
    const std::vector<float> values = test::drawn(device, registry[id], number);
    for (const Side side : {Side::rowwise, Side::columnwise}) {
      const Use use = sync.operand(stream(), id, side);
      test::expect_quantized(device, *use, registry[id], values, side, where + ", " + registry[id].name);
    }
  }
  /// All bytes of weights that this rank keeps, gaps and padding included.
  std::string stored() {
    std::string all;
    sync.unshard_all(stream());
    sync.visit_planes([&](const Plane& plane) {
      const std::vector<std::uint8_t> bytes = test::bytes_of(device, plane.values);
      all.append(bytes.begin(), bytes.end());
    });
    return all;
  }

  Device device;
  ParamRegistry registry;
  ParamLayout layout;
  Usage usage;
  std::vector<Record> records;
  Mesh mesh;
  std::unique_ptr<Control> control = mpi().control(std::chrono::seconds(300));
  Masters masters;
  ParamSync sync;
};

TEST(Wires, EveryStoredByteIsTheQuantizedWeights) {
  for (Case one : cases())
    for (const auto& [gather, bucket] : {std::pair{Overlap::on, 1}, {Overlap::off, 12000}, {Overlap::on, 1 << 20}}) {
      one.rules.gather = gather;
      Bench bench(one, bucket, parameters(one.format));
      for (std::uint64_t number : {11u, 12u}) {
        bench.publish(number);
        for (int p : {0, 4, 1, 2, 5, 6, 3}) bench.expect_weight({p}, number, one.name());
        if (HasFatalFailure()) return;
      }
      const std::vector<std::string> all = bench.control->gather(bench.stored());
      for (const std::string& other : all) ASSERT_EQ(other, all.front()) << one.name() << ": replicas";
      if (const CollectiveLog* log = bench.mesh.log()) log->compare(*bench.control);
    }
}

/// bf16 staged in a group's gradients is consumed before the gradients are written, in any order of writes. Gradients
/// that are not written hold old staged bytes, none of which may reach a sum.
TEST(Wires, GradientsAndStagedBytesShareTheirMemory) {
  for (const Case& one : cases()) {
    if (one.travel() != Travel::bf16) continue;
    Bench bench(one, 4000, parameters(one.format));
    std::uint64_t number = 20;
    for (int step = 0; step < 3; ++step) {
      bench.publish(++number);
      Accumulating sum = bench.sync.accumulate();
      for (int p : {6, 5, 2, 0}) {  // weights that no forward has used
        const Gradient slot = sum.slot({p});
        EXPECT_EQ(slot.beta, 0.0f);
        for (int e = 0; e < slot.members; ++e) fill(bench.stream(), slot.member(e).sum, 1.0);
        sum.written(bench.stream(), {p});
      }
      for (int p : {0, 4, 1, 2, 5, 6, 3}) bench.expect_weight({p}, number, one.name());
      if (HasFatalFailure()) return;
      Reduced reduced = std::move(sum).reduce(bench.stream());
      for (BucketId b : bench.layout.buckets().ids()) {
        const std::vector<float> shard = test::on_host<float>(bench.device, reduced.shard(b));
        std::vector<float> wanted(shard.size(), 0.0f);
        for (const ShardRange& piece : bench.layout.shard_ranges(b, bench.mesh.ranks()))
          if (const int p = piece.param.value; p == 6 || p == 5 || p == 2 || p == 0)
            for (std::int64_t i = 0; i < piece.count.value; ++i)
              wanted[static_cast<std::size_t>(piece.shard.value + i)] = static_cast<float>(mpi().size());
        ASSERT_EQ(shard, wanted) << one.name() << ", bucket " << b.value;
      }
      (void)std::move(reduced).clipped(bench.stream(), nullptr).updated();
      for (BucketId b : bench.layout.buckets().ids())
        fill(bench.stream(), bench.sync.gradients(b), std::numeric_limits<double>::quiet_NaN());
    }
  }
}

TEST(Wires, NothingIsStagedInGradientsThatAreInUse) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(test::shown(one.name()));
    if (one.travel() != Travel::bf16 || one.rules.weights.staging == GatherStaging::ring) continue;
    Bench bench(one, 4000, parameters(one.format));
    bench.publish(1);
    Accumulating sum = bench.sync.accumulate();
    (void)sum.slot({0});
    EXPECT_THROW(bench.publish(2), StateError);
    return;
  }
}

/// Number of elements in the slices of all other ranks.
std::int64_t others(const Bucket& bucket, const Ranks& ranks) { return bucket.size.value - bucket.slice(ranks); }

/// Number of blocks of `edge` x `edge` that other ranks own, if all shapes are whole blocks.
std::int64_t blocks_of_others(const Bench& bench, BucketId b, std::int64_t edge) {
  std::int64_t all = 0, own = 0;
  for (const Placement& p : bench.layout.buckets()[b].members) all += p.size.value;
  for (const ShardRange& piece : bench.layout.shard_ranges(b, bench.mesh.ranks())) own += piece.count.value;
  return (all - own) / (edge * edge);
}

/// Whether both copies of a weight travel: neither can be made of the other.
bool both_travel(FormatId format) { return traits_of(format).columnwise == formats::Columnwise::requantized; }

std::int64_t expected_bytes(const Bench& bench, const Case& one, BucketId b) {
  const Bucket& bucket = bench.layout.buckets()[b];
  const std::int64_t elements = others(bucket, bench.mesh.ranks());
  if (!bucket.key.format.codes || one.travel() == Travel::bf16) return 2 * elements;
  if (both_travel(one.format)) {
    // Scales of every row with their padding; padding rows belong to the owner of the last row.
    std::int64_t whole = 0;
    bench.sync.visit_planes([&](const Plane& plane) {
      if (plane.bucket == b && (plane.kind == PlaneKind::rowwise_scales || plane.kind == PlaneKind::columnwise_scales))
        whole += plane.values.bytes();
    });
    std::int64_t own = 0;
    for (const ShardRange& piece : bench.layout.shard_ranges(b, bench.mesh.ranks())) {
      const Shape& m = bench.registry[piece.param].member;
      const std::int64_t row = piece.begin.value / m[1], end = (piece.begin + piece.count).value / m[1];
      const bool last = end == m[0];
      own += ((last ? round_up(m[0], 128) : end) - row) * round_up(m[1] / 32, 4);
      own += ((last ? round_up(m[0] / 32, 4) : end / 32) - row / 32) * round_up(m[1], 128);
    }
    return 2 * elements * traits_of(one.format).bits / 8 + whole - own;
  }
  const FormatTraits format = traits_of(one.format);
  std::int64_t bytes = elements * format.bits / 8;
  if (one.owns_blocks()) bytes += blocks_of_others(bench, b, format.block.rows) * size_of(format.scale_type);
  if (one.owner == OwnerKind::whole_matrix && format.tensor_amax)
    bytes += 4 * (std::ssize(bucket.members) - std::ssize(bench.layout.shard_ranges(b, bench.mesh.ranks())));
  return bytes;
}

TEST(Wires, GathersMoveWhatTheFormatsSay) {
  for (const Case& one : cases()) {
    if (traits_of(one.format).ragged && one.owns_blocks()) continue;  // blocks of odd shapes are not counted
    Bench bench(one, 12000, parameters(one.format));
    bench.publish(1);
    bench.sync.unshard_all(bench.stream());
    IndexedBy<GroupId, std::int64_t> moved(bench.layout.groups().size(), 0);
    std::int64_t agreements = 0, gathers = 0, agreed = 0;
    for (const Record& record : bench.records) {
      if (record.collective == Collective::all_reduce_max) {
        ++agreements;
        agreed += record.bytes;
        continue;
      }
      ASSERT_EQ(record.collective, Collective::all_gather);
      moved[{record.group}] += record.bytes;
      ++gathers;
    }
    const bool many = mpi().size() > 1;
    const bool cast = one.travel() == Travel::codes && !both_travel(one.format);
    const bool tensor = traits_of(one.format).tensor_amax;
    const bool agree = cast && one.owner == OwnerKind::element_sharded && (one.cuts == GatherCuts::flat || tensor);
    // Dense and experts: one each, over the whole world here.
    EXPECT_EQ(agreements, many && agree ? 2 : 0) << one.name();
    if (many && agree && one.cuts == GatherCuts::tile) {
      EXPECT_EQ(agreed, 2 * (3 + 5)) << one.name();  // one bf16 a member
    }
    EXPECT_EQ(gathers, many ? bench.layout.groups().size() : 0) << "each group is gathered once";
    for (GroupId group : bench.layout.groups().ids()) {
      std::int64_t expected = 0;
      for (BucketId b : bench.layout.groups()[group].buckets) expected += expected_bytes(bench, one, b);
      EXPECT_EQ(moved[group], many ? expected : 0) << one.name() << ", group " << group.value;
    }
  }
}

/// `count` matrices and stacks of `experts` experts, in one bucket each.
ParamRegistry many_parameters(FormatId format, int count, int experts) {
  ParamRegistry registry(TreatmentRules{{.weight = {format, format}}});
  const ParamRegistry::InBlock block(registry, 0);
  for (int i = 0; i < count; ++i) {
    const std::string name = std::to_string(i);
    registry.add({"m" + name, {64, 32}, 1, Role::matrix, {Start::Kind::normal, 0.5}, {"m" + name, {64, 32}, 0}});
    registry.add({"e" + name, {32, 64}, experts, Role::expert, {Start::Kind::normal, 0.5},
                  {"e" + name, {experts, 32, 64}, 0}});
  }
  return registry;
}

/// Number of launches for one weight, by kernel.
struct KernelLaunches {
  std::int64_t amaxes = 0, cast = 0, columnwise = 0, whole = 0;
};
KernelLaunches launches_over_one_weight(FormatId format) {
  return visit_format(format, [&]<class F>() {
    Device device;
    const formats::Matrix shape{64, 32};
    const test::GuardedCopy<F> row(device, Side::rowwise, shape, 1), column(device, Side::columnwise, shape, 1);
    QuantizedMatrix matrix;
    matrix.matrix = shape;
    matrix.values = test::on_device(device, std::vector<float>(64 * 32, 1.0f));
    matrix.rowwise = row.copy();
    matrix.columnwise = column.copy();
    if (F::columnwise == formats::Columnwise::shared) matrix.columnwise.data = matrix.rowwise.data;
    if (F::tensor_amax) matrix.columnwise.amax = matrix.rowwise.amax;
    const QuantizeTable table = placed(device, QuantizeTable(format, std::vector{matrix}));
    const Tensor amaxes = device.allocate(Category::staging, DType::bf16, {table.amax_entries()});
    Stream& stream = device.compute();
    const auto launches_of = [&](const auto& kernel) {
      const std::int64_t before = stream.launches();
      kernel();
      return stream.launches() - before;
    };
    KernelLaunches all;
    all.whole = launches_of([&] { quantize(stream, table); });
    if (F::agreement == formats::Agreement::nothing) return all;
    all.amaxes = launches_of([&] { block_amax(stream, table, amaxes); });
    all.cast = launches_of([&] { partial_cast(stream, table, amaxes); });
    all.columnwise = launches_of([&] { build_columnwise(stream, table); });
    return all;
  });
}

/// Number of launches of one publication and its gathers. One computation of amaxes and one cast for each format, and
/// one columnwise build (or one quantization of gathered bf16) for each group.
std::int64_t expected_launches(const Case& one, std::int64_t groups) {
  const KernelLaunches kernels = launches_over_one_weight(one.format);
  if (one.travel() == Travel::bf16) return 1 + groups * kernels.whole;  // masters are rounded in one launch
  if (traits_of(one.format).columnwise == formats::Columnwise::requantized) return kernels.whole;
  return kernels.amaxes + kernels.cast + groups * kernels.columnwise;
}

TEST(Wires, LaunchesDoNotDependOnHowManyWeightsOrExpertsThereAre) {
  for (const Case& one : cases()) {
    int groups = 0;
    const auto launches = [&](int count, int experts) {
      ParamRegistry registry = many_parameters(one.format, count, experts);
      Usage usage;
      for (int p = 0; p < registry.size(); ++p) usage.contributions.push_back({{p}, 0});
      Device device;
      const ParamLayout layout = ParamLayout::build(registry, layout_of(one, 1 << 24));
      Mesh mesh = mpi().mesh(device, mpi().ranks(), std::chrono::seconds(300));
      Masters masters(device, layout, mesh.ranks());
      ParamSync sync(device, registry, layout, schedule_of({usage, registry, layout, mesh.ranks(), one.rules}), masters,
                     mesh, one.rules);
      Updated start = masters.initialise(device.compute(), registry, layout, mesh.ranks(), 3);
      const std::int64_t before = device.compute().launches();
      sync.publish(device.compute(), std::move(start));
      sync.unshard_all(device.compute());
      groups = layout.groups().size();
      return device.compute().launches() - before;
    };
    const std::int64_t few = launches(2, 4);
    EXPECT_EQ(few, expected_launches(one, groups)) << one.name();
    EXPECT_EQ(few, launches(9, 4)) << one.name();
    EXPECT_EQ(few, launches(2, 64)) << one.name();
  }
}

}  // namespace
}  // namespace tessera
