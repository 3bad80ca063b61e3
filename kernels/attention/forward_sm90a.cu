// Causal attention for heads of 64 columns on Hopper's tensor cores: TMA, wgmma, persistent blocks; the softmax is
// rescaled as its maximum grows (Dao 2022). Compiled for sm_90a, apart from sources that include Kokkos.
#include "kernels/attention/hopper.hpp"
#include "kernels/attention/softmax_sm90a.cuh"
#include "kernels/attention/sweep_sm90a.cuh"

namespace tessera::attention {
namespace {

using namespace tiles;

struct Outputs : Sequences {
  CUtensorMap out;
  float* lse;
};

struct Forward : OverKeys {
  using Call = Outputs;
  struct Memory {
    static constexpr unsigned stages = 8;
    ItemTiles<1> held;
    Tile passing[stages][2], result[groups];
    Ring<stages> ring;

    __device__ void init() { held.ring.init(), ring.init(); }
  };

  __device__ static void load_held(const Call& call, const Order& order, Memory& memory) {
    unsigned n = 0;
    for (Item item; item = order[n]; ++n) {
      std::uint64_t* const arrival = memory.held.fill(n, item, min(groups, last(call, item) + 1));
      each_strip(call, item, [&](int g, int token) {
        load(memory.held.tile[n % held_stages][g][0], call.qkv, arrival, item.head, token, item.sequence);
      });
    }
    memory.held.end(n);
  }

  __device__ static void compute(const Call& call, Memory& memory, const Group& group) {
    unsigned count = 0;
    for (unsigned n = 0; const Item item = memory.held.wait(n); ++n) {
      const Course course = OverKeys::course(call, item, group.index);
      if (course.active > 0) {
        Factor q = read(memory.held.tile[n % held_stages][group.index][0], group.layout());
        memory.held.ring.release(n, group);
        memory.ring.skip(count, course.before(), group);
        Sums sums;
        Softmax softmax;
        add_tiles(call, memory, group, q, course, count, sums, softmax);
        finish(call, memory, group, item, course.active - 1, sums, softmax);
        memory.ring.skip(count, course.after(), group);
      } else {
        memory.held.ring.release(n, group);
        memory.ring.skip(count, course.tiles, group);
      }
    }
  }

  /// The product of a tile's weights with its values runs under the softmax of the next tile.
  __device__ static void add_tiles(const Call& call, Memory& memory, const Group& group, Factor& q,
                                   const Course& course, unsigned& count, Sums& sums, Softmax& softmax) {
    const ThreadLayout at = group.layout();
    const unsigned first = count, diagonal = first + course.diagonal();
    const unsigned end = first + static_cast<unsigned>(course.active);
    const auto tile = [&](unsigned c) -> Tile(&)[2] { return memory.passing[uniform(c) % Memory::stages]; };
    const auto mask = [&](Sums& scores) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < values; ++i)
        if (at.column(i) > at.row(i)) scores(i) = -INFINITY;
    };
    Sums scores;
    float shrink[2];
    memory.ring.wait(count);
    begin_products(scores, q);
    start_by_rows(scores, q, tile(count)[key]);
    end_products();
    wait_products<0>(scores);
    if (count == diagonal) mask(scores);
    softmax.weigh(scores, call.scale_of_2(), shrink);
    Factor p = rounded(scores);
    cute::clear(sums);
    for (++count; count != end; ++count) {
      memory.ring.wait(count);
      begin_products(scores, q, sums, p);
      start_by_rows(scores, q, tile(count)[key]);
      end_products();
      start_adding(sums, p, tile(count - 1)[value]);
      end_products();
      wait_products<1>(scores);
      if (count == diagonal) mask(scores);
      softmax.weigh(scores, call.scale_of_2(), shrink);
      wait_products<0>(sums, p);
      memory.ring.release(count - 1, group);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < values; ++i) sums(i) *= shrink[i / 2 % 2];
      p = rounded(scores);
    }
    begin_products(sums, p);
    start_adding(sums, p, tile(count - 1)[value]);
    end_products();
    wait_products<0>(sums, p);
    memory.ring.release(count - 1, group);
  }

  __device__ static void finish(const Call& call, Memory& memory, const Group& group, const Item& item, int strip,
                                Sums& sums, const Softmax& softmax) {
    const ThreadLayout at = group.layout();
    const float total[2] = {softmax.sum(0), softmax.sum(1)};
    float* const lse = call.lse + (static_cast<std::int64_t>(item.sequence) * call.heads + item.head) * call.length;
    for (int half = 0; half < 2; ++half)
      if (const int token = strip * side + at.row(2 * half); group.thread % 4 == 0 && token < call.length)
        lse[token] = softmax.top[half] * call.scale + logf(total[half]);
    const float inverse[2] = {1 / total[0], 1 / total[1]};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < values; ++i) sums(i) *= inverse[i / 2 % 2];
    Tile& result = memory.result[group.index];
    group.put([&] { write(result, at, sums, 1); },
              [&] { store(call.out, result, item.head, strip * side, item.sequence); });
  }
};

}  // namespace

bool hopper_forward(Stream& stream, const AttentionShape& s, const AttentionOperands& pass) {
  const auto& [out, lse, qkv, none] = pass;
  if (!takes(s, side, {out, qkv})) return false;
  if (stream.dry()) return true;
  const Outputs call{sequences_of(s, qkv), map_of(s, out, s.heads), lse.as<float>()};
  start<Forward>(stream, call, call.heads);
  return true;
}

}  // namespace tessera::attention
