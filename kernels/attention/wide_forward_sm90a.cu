// Causal attention for heads of 128 columns on Hopper's tensor cores. Two warpgroups of 64 queries pass over blocks of
// 128 keys, and one computes its softmax under the products of the other. Compiled for sm_90a, apart from sources that
// include Kokkos.
#include "kernels/attention/hopper.hpp"
#include "kernels/attention/softmax_sm90a.cuh"
#include "kernels/attention/wide_sm90a.cuh"

namespace tessera::attention {
namespace {

using namespace wide;
using tiles::Softmax;

struct ForwardCall : Sequences {
  CUtensorMap out;
  float* lse;
  tiles::Order order;
};

struct Forward {
  using Call = ForwardCall;
  static constexpr unsigned stages = 2;
  using Block = Tile[panels * groups];  ///< 128 keys or values, panel by panel
  struct Memory {
    Tile query[stages][groups][panels], result[groups][panels];
    Block key[stages], value[stages];
    Item items[stages];
    tiles::Ring<stages, reading_warps> queries, keys, values;

    __device__ void init() { queries.init(), keys.init(), values.init(); }
    __device__ std::uint64_t* fill(unsigned n, const Item& item, std::uint32_t bytes) {
      queries.wait_empty(n);
      items[n % stages] = item;
      return queries.fill(n, bytes);
    }
    __device__ Item item(unsigned n) {
      queries.wait(n);
      return items[n % stages];
    }
  };

  /// The last block of keys of an item, and its block of queries.
  __device__ static int last(const Call& call, const Item& item) { return (call.strips - 1) / groups - item.place; }

  __device__ static void load(const Call& call, Memory& memory, int warp) {
    if (warp == 0) load_keys(call, memory);
    if (warp == 1) load_queries(call, memory);
  }
  __device__ static void load_queries(const Call& call, Memory& memory) {
    unsigned n = 0;
    for (Item item; item = call.order[n]; ++n) {
      std::uint64_t* const arrival = memory.fill(n, item, groups * panels * tile_bytes);
      for (int g = 0; g < groups; ++g)
        load_rows(memory.query[n % stages][g], 1, call.qkv, arrival, item.head,
                  last(call, item) * block_rows + g * side, item.sequence);
    }
    memory.fill(n, Item(), 0);
  }
  __device__ static void load_keys(const Call& call, Memory& memory) {
    unsigned count = 0;
    const auto load_block = [&](auto& ring, Block(&to)[stages], int head, int block, int sequence) {
      ring.wait_empty(count);
      std::uint64_t* const arrival = ring.fill(count, groups * panels * tile_bytes);
      for (int g = 0; g < groups; ++g)
        load_rows(&to[count % stages][g], groups, call.qkv, arrival, head, block * block_rows + g * side, sequence);
    };
    Item item;
    for (unsigned n = 0; item = call.order[n]; ++n)
      for (int block = last(call, item); block >= 0; --block, ++count) {
        const int head = call.heads + item.head / call.sharing();
        load_block(memory.keys, memory.key, head, block, item.sequence);
        load_block(memory.values, memory.value, head + call.kv_heads, block, item.sequence);
      }
  }

  __device__ static void compute(const Call& call, Memory& memory, const Group& group) {
    unsigned count = 0;
    for (unsigned n = 0; const Item item = memory.item(n); ++n) {
      Sums<width> sums;
      Softmax softmax;
      const int block = last(call, item);
      add_blocks(call, memory, group, memory.query[uniform(n) % stages][group.index][0],
                 count + static_cast<unsigned>(block) + 1, count, sums, softmax);
      memory.queries.release(n, group);
      finish(call, memory, group, item, block * block_rows + group.index * side, sums, softmax);
    }
  }

  /// From the block on the diagonal back to the first. The product of a block's weights with its values runs under the
  /// softmax of the next block.
  __device__ static void add_blocks(const Call& call, Memory& memory, const Group& group, Tile& q, unsigned end,
                                    unsigned& count, Sums<width>& sums, Softmax& softmax) {
    const ThreadLayout at = group.layout();
    const auto key = [&](unsigned c) -> Tile& { return memory.key[uniform(c) % stages][0]; };
    const auto value = [&](unsigned c) -> Tile& { return memory.value[uniform(c) % stages][0]; };
    Sums<width> scores;
    float shrink[2];
    memory.keys.wait(count);
    begin_products(scores);
    start_by_rows<width>(scores, q, key(count));
    end_products();
    wait_products<0>(scores);
    memory.keys.release(count, group);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < values<width>; ++i)
      if (at.column(i) > at.row(i) + group.index * side) scores(i) = -INFINITY;
    softmax.weigh(scores, call.scale_of_2(), shrink);
    Factor<width> p = rounded<width>(scores);
    cute::clear(sums);
    for (++count; count != end; ++count) {
      memory.keys.wait(count);
      begin_products(scores);
      start_by_rows<width>(scores, q, key(count));
      end_products();
      memory.values.wait(count - 1);
      begin_products(sums, p);
      start_adding<width>(sums, p, value(count - 1));
      end_products();
      wait_products<1>(scores);
      memory.keys.release(count, group);
      softmax.weigh(scores, call.scale_of_2(), shrink);
      wait_products<0>(sums, p);
      memory.values.release(count - 1, group);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < values<width>; ++i) sums(i) *= shrink[i / 2 % 2];
      p = rounded<width>(scores);
    }
    memory.values.wait(count - 1);
    begin_products(sums, p);
    start_adding<width>(sums, p, value(count - 1));
    end_products();
    wait_products<0>(sums, p);
    memory.values.release(count - 1, group);
  }

  __device__ static void finish(const Call& call, Memory& memory, const Group& group, const Item& item, int first,
                                Sums<width>& sums, const Softmax& softmax) {
    const ThreadLayout at = group.layout();
    const float total[2] = {softmax.sum(0), softmax.sum(1)};
    float* const lse = call.lse + (static_cast<std::int64_t>(item.sequence) * call.heads + item.head) * call.length;
    for (int half = 0; half < 2; ++half)
      if (const int token = first + at.row(2 * half); group.thread % 4 == 0 && token < call.length)
        lse[token] = softmax.top[half] * call.scale + logf(total[half]);
    const float inverse[2] = {1 / total[0], 1 / total[1]};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < values<width>; ++i) sums(i) *= inverse[i / 2 % 2];
    Tile(&result)[panels] = memory.result[group.index];
    group.put(
        [&] {
          for (int panel = 0; panel < panels; ++panel) write<width>(result[panel], at, sums, 1, panel * values<side>);
        },
        [&] {
          for (int panel = 0; panel < panels && first < call.length; ++panel)
            store(call.out, result[panel], item.head * panels + panel, first, item.sequence);
        });
  }
};

}  // namespace

bool wide_forward(Stream& stream, const AttentionShape& s, const AttentionOperands& pass) {
  const auto& [out, lse, qkv, none] = pass;
  if (!tiles::takes(s, width, {out, qkv})) return false;
  if (stream.dry()) return true;
  const Sequences sequences = tiles::sequences_of(s, qkv);
  wide::start<Forward>(stream, {sequences, tiles::map_of(s, out, s.heads * panels), lse.as<float>(),
                          tiles::Order(sequences.count, sequences.heads, (sequences.strips + groups - 1) / groups,
                                       tiles::multiprocessors_of_device())});
  return true;
}

}  // namespace tessera::attention
