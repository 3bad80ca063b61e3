// Gradients of causal attention for heads of 128 columns on Hopper's tensor cores. A block holds 128 keys and values,
// and the queries that see them pass in tiles of 64: five products a tile. dK and dV are sums in registers. Blocks add
// their parts of dQ to fp32 sums in global memory, in a fixed order: from the block on the diagonal back to the first.
// Blocks start in that order and each begins at its own diagonal, two tiles after the block before it reached the same
// queries. So hardly any waits for its turn. Compiled for sm_90a, apart from sources that include Kokkos.
#include <cuda/atomic>

#include "kernels/attention/hopper.hpp"
#include "kernels/attention/wide_rows_sm90a.cuh"
#include "kernels/attention/wide_sm90a.cuh"

namespace tessera::attention {
namespace {

using namespace wide;

/// The order in which blocks take items: heads in batches, of a batch the last keys of all heads first.
class Chains {
 public:
  Chains(int sequences, int heads, int places, int batch)
      : batch_(batch * places),
        of_batch_(batch),
        of_last_(std::max(1, sequences * heads % batch)),
        heads_(heads),
        places_(places),
        items_(sequences * heads * places),
        before_last_(sequences * heads / batch * batch) {}

  __device__ Item operator[](int index) const {
    Item item;
    if (index >= items_) return item;
    int first = before_last_, within = index - before_last_ * places_, head, step;
    const bool last = within >= 0;
    if (!last) first = batch_.divmod(within, index) * batch_size();
    step = (last ? of_last_ : of_batch_).divmod(head, within);
    item.sequence = heads_.divmod(item.head, first + head);
    item.place = places_ - 1 - step;
    return item;
  }

 private:
  __device__ int batch_size() const { return of_batch_.divisor; }

  cutlass::FastDivmod batch_, of_batch_, of_last_, heads_;
  int places_, items_, before_last_;
};

struct GradientsCall : Sequences {
  CUtensorMap dout, dkv;  ///< dkv: where gradients of keys and values of every query head go
  int dkey_slot, dvalue_slot;
  QueryRows rows;
  Chains order;
};

/// Places where the groups of a block wait for each other.
enum class Meeting : std::uint32_t { gradients = groups, ends };  // the first barriers are those of Group
__device__ void meet(Meeting at) {
  cutlass::arch::NamedBarrier::sync(groups * group_threads, static_cast<std::uint32_t>(at));
}

struct Gradients {
  using Call = GradientsCall;
  static constexpr unsigned stages = 2;
  enum Passing : int { query, dout };
  enum Holding : int { key, value };
  using Ready = cutlass::arch::ClusterBarrier;

  struct Memory {
    Tile held[2][groups][panels];  ///< keys, values; at an item's end their gradients
    Tile passing[stages][2][panels], ds[stages][groups];
    alignas(128) float dq[stages][groups][side * side];
    alignas(128) float rows[stages][2][side];  ///< of queries: lse in base 2, then delta
    Item item;
    tiles::Ring<1, reading_warps + stages> held_ring;
    tiles::Ring<stages, reading_warps> ring;
    Ready dq_full[stages], dq_empty[stages];

    __device__ void init() {
      held_ring.init(), ring.init();
      for (int i = 0; i < static_cast<int>(stages); ++i) dq_full[i].init(reading_warps), dq_empty[i].init(1);
    }
    __device__ Item wait_item(unsigned n) {
      held_ring.wait(n);
      return item;
    }
  };
  static_assert(sizeof(float[2][side]) == QueryRows::bytes);

  /// Tiles of queries that see an item's keys, and the first of them.
  __device__ static int first(const Item& item) { return groups * item.place; }
  __device__ static int tiles_of(const Call& call, const Item& item) { return call.strips - first(item); }

  __device__ static void load(const Call& call, Memory& memory, int warp) {
    if (warp == 0) load_tiles(call, memory);
    if (warp >= 2) add_queries(call, memory, static_cast<unsigned>(warp - 2));
  }

  __device__ static void load_tiles(const Call& call, Memory& memory) {
    unsigned count = 0, n = 0;
    for (;; ++n) {
      const Item item = call.order[call.rows.take_ticket()];
      if (!item) break;
      const int tiles = tiles_of(call, item), early = min(tiles, static_cast<int>(stages));
      for (int t = 0; t < tiles; ++t, ++count) {
        load_queries(call, memory, item, first(item) + t, count);
        if (t == early - 1) load_held(call, memory, item, n);  // its place is free later than that of queries
      }
    }
    memory.held_ring.wait_empty(n);
    memory.item = Item();
    memory.held_ring.fill(n, 0);
  }
  __device__ static void load_queries(const Call& call, Memory& memory, const Item& item, int strip, unsigned count) {
    const unsigned stage = count % stages;
    memory.ring.wait_empty(count);
    std::uint64_t* const arrival = memory.ring.fill(count, 2 * panels * tile_bytes + QueryRows::bytes);
    load_rows(memory.passing[stage][query], 1, call.qkv, arrival, item.head, strip * side, item.sequence);
    load_rows(memory.passing[stage][dout], 1, call.dout, arrival, item.head, strip * side, item.sequence);
    cute::SM90_BULK_COPY_G2S::copy(call.rows.sums_of(call.rows.strip(call, item, strip)), arrival,
                                   memory.rows[stage], QueryRows::bytes);
  }
  __device__ static void load_held(const Call& call, Memory& memory, const Item& item, unsigned n) {
    memory.held_ring.wait_empty(n);
    memory.item = item;
    std::uint64_t* const arrival = memory.held_ring.fill(n, 2 * groups * panels * tile_bytes);
    const int head = call.heads + item.head / call.sharing();
    for (int g = 0; g < groups; ++g) {
      const int token = item.place * block_rows + g * side;
      load_rows(memory.held[key][g], 1, call.qkv, arrival, head, token, item.sequence);
      load_rows(memory.held[value][g], 1, call.qkv, arrival, head + call.kv_heads, token, item.sequence);
    }
  }

  /// Adds every other tile's part of dQ to global memory when it is this block's turn.
  __device__ static void add_queries(const Call& call, Memory& memory, unsigned stage) {
    unsigned count = 0;
    Item item;
    for (unsigned n = 0; item = memory.wait_item(n); ++n) {
      memory.held_ring.empty[0].arrive();
      const int tiles = tiles_of(call, item);
      for (int t = 0; t < tiles; ++t, ++count) {
        if (count % stages != stage) continue;
        memory.dq_full[stage].wait(count / stages % 2);
        const int strip = first(item) + t;
        call.rows.add(call.rows.strip(call, item, strip), strip / groups - item.place, memory.dq[stage],
                      [&] { memory.dq_empty[stage].arrive(); });
      }
    }
  }

  __device__ static void compute(const Call& call, Memory& memory, const Group& group) {
    unsigned count = 0;
    for (unsigned n = 0; const Item item = memory.wait_item(n); ++n) {
      Sums<width> dk, dv;
      cute::clear(dk), cute::clear(dv);
      add_tiles(call, memory, group, count + static_cast<unsigned>(tiles_of(call, item)), count, dk, dv);
      finish(call, memory, group, item, dk, dv);
      memory.held_ring.release(n, group);
    }
  }

  /// Scores are transposed here: rows are keys, columns queries.
  __device__ static void add_tiles(const Call& call, Memory& memory, const Group& group, unsigned end, unsigned& count,
                                   Sums<width>& dk, Sums<width>& dv) {
    const ThreadLayout at = group.layout();
    const float scale_of_2 = call.scale_of_2();
    int diagonal = group.index * side;  // where it meets the tile's first row; left of the later tiles
    for (; count != end; ++count, diagonal -= side) {
      const unsigned stage = uniform(count) % stages;
      Tile(&tile)[2][panels] = memory.passing[stage];
      const auto& [lse, delta] = memory.rows[stage];
      Sums<side> scores, slopes, dq;
      memory.ring.wait(count);
      begin_products(scores);
      start_by_rows<side>(scores, memory.held[key][group.index][0], tile[query][0]);
      end_products();
      begin_products(slopes);
      start_by_rows<side>(slopes, memory.held[value][group.index][0], tile[dout][0]);
      end_products();
      wait_products<1>(scores);
      by_columns(lse, at, [&](int i, float of) { scores(i) = exp2_of(fmaf(scores(i), scale_of_2, -of)); });
      if (diagonal > -side) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < values<side>; ++i)
          if (at.column(i) < at.row(i) + diagonal) scores(i) = 0;
      }
      Factor<side> p = rounded<side>(scores);
      wait_products<0>(slopes);
      begin_products(dv, p);
      start_adding<side>(dv, p, tile[dout][0]);
      end_products();
      by_columns(delta, at, [&](int i, float of) { scores(i) *= slopes(i) - of; });
      Factor<side> ds = rounded<side>(scores);
      write(memory.ds[stage][group.index], at, ds);
      cutlass::arch::fence_view_async_shared();
      begin_products(dk, ds);
      start_adding<side>(dk, ds, tile[query][0]);
      end_products();
      meet(Meeting::gradients);
      start_dq(memory, group, stage, dq);
      wait_products<0>(dq, dk, dv, p, ds);
      memory.ring.release(count, group);
      put_dq(memory, group, count, dq);
    }
  }

  /// Calls f(value, sum) for every value: `sums` are those of the queries, which are columns.
  template <class F>
  __device__ static void by_columns(const float (&sums)[side], const ThreadLayout& at, const F& f) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < values<side>; i += 4) {
      const float2 two = *reinterpret_cast<const float2*>(&sums[at.column(i)]);
      f(i, two.x), f(i + 1, two.y), f(i + 2, two.x), f(i + 3, two.y);
    }
  }

  /// A group computes one panel of dQ, from the gradients of both groups' scores.
  __device__ static void start_dq(Memory& memory, const Group& group, unsigned stage, Sums<side>& dq) {
    begin_products(dq);
    CUTLASS_PRAGMA_UNROLL
    for (int g = 0; g < groups; ++g)
      start_by_columns(dq, memory.ds[stage][g], memory.held[key][g][group.index],
                       g == 0 ? ScaleOut::Zero : ScaleOut::One);
    end_products();
  }
  __device__ static void put_dq(Memory& memory, const Group& group, unsigned count, const Sums<side>& dq) {
    const unsigned stage = count % stages;
    memory.dq_empty[stage].wait((count / stages % 2) ^ 1);
    float4* const to = reinterpret_cast<float4*>(memory.dq[stage][group.index]) + group.thread;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < values<side>; i += 4)
      to[i / 4 * group_threads] = make_float4(dq(i), dq(i + 1), dq(i + 2), dq(i + 3));
    cute::tma_store_fence();
    __syncwarp();
    if (group.leader()) memory.dq_full[stage].arrive();
  }

  /// dV and dK take the place of values and keys.
  __device__ static void finish(const Call& call, Memory& memory, const Group& group, const Item& item,
                                const Sums<width>& dk, const Sums<width>& dv) {
    meet(Meeting::ends);  // no group reads keys any more
    const int token = item.place * block_rows + group.index * side;
    Tile(&dkey)[panels] = memory.held[key][group.index], (&dvalue)[panels] = memory.held[value][group.index];
    group.put(
        [&] {
          for (int panel = 0; panel < panels; ++panel) {
            write<width>(dkey[panel], group.layout(), dk, call.scale, panel * values<side>);
            write<width>(dvalue[panel], group.layout(), dv, 1, panel * values<side>);
          }
        },
        [&] {
          for (int panel = 0; panel < panels && token < call.length; ++panel) {
            store(call.dkv, dkey[panel], (call.dkey_slot + item.head) * panels + panel, token, item.sequence);
            store(call.dkv, dvalue[panel], (call.dvalue_slot + item.head) * panels + panel, token, item.sequence);
          }
        });
    if (group.thread == 0) cute::tma_store_wait<0>();
  }
};

/// Heads under way at a time: few enough for their queries, gradients of outputs and sums of dQ, 1 KiB a token, to stay
/// in the L2 cache. The bits do not depend on it.
int heads_of_batch(const Sequences& s) {
  constexpr int tokens_in_cache = 1 << 15, most = 16;
  return std::min(std::clamp(tokens_in_cache / s.length, 1, most), s.count * s.heads);
}

}  // namespace

bool wide_backward(Stream& stream, Arena& arena, const AttentionShape& s, const AttentionOperands& pass,
                   const Tensor& dqkv, const Tensor& dout) {
  const auto& [out, lse, qkv, none] = pass;
  if (!tiles::takes(s, width, {dqkv, dout, qkv, out})) return false;
  const Arena::Frame frame(arena);
  const Workspace workspace(arena, s);
  if (stream.dry()) return true;
  const Sequences sequences = tiles::sequences_of(s, qkv);
  const bool alone = s.kv_heads == s.heads;
  const Tensor& dkv = alone ? dqkv : workspace.dkv;
  const std::int64_t slots = alone ? s.heads + 2 * s.kv_heads : 2 * s.heads;
  const QueryRows rows = workspace.rows();
  prepare(stream, s, rows, dout, out, lse);
  wide::start<Gradients>(
      stream, {sequences, tiles::map_of(s, dout, s.heads * panels), tiles::map_of(s, dkv, slots * panels),
               alone ? sequences.heads : 0, alone ? 2 * sequences.heads : sequences.heads, rows,
               Chains(sequences.count, sequences.heads, (sequences.strips + groups - 1) / groups,
                      heads_of_batch(sequences))});
  conclude(stream, s, rows, workspace.dkv, dqkv);
  return true;
}

}  // namespace tessera::attention
