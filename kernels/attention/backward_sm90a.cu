// Gradients of causal attention for heads of 64 columns on Hopper's tensor cores: TMA, wgmma, persistent blocks. Two
// sweeps recompute the probabilities, one for dQ and one for dK and dV. So each gradient is summed by one warpgroup in
// its registers. That takes seven products instead of five, but no atomics, no fp32 dQ in memory, and a fixed order.
// Compiled for sm_90a, apart from sources that include Kokkos.
#include "kernels/attention/hopper.hpp"
#include "kernels/attention/sweep_sm90a.cuh"

namespace tessera::attention {
namespace {

using namespace tiles;

/// Arguments of both sweeps.
struct Gradients : Sequences {
  CUtensorMap dout, out, dqkv;
  const float* lse;
  float* rows;  ///< [sequences, heads, strips][2][64]: lse in base 2, and the dot product of dout with out

  __device__ float* rows_of(int sequence, int head, int strip) const {
    return rows + ((static_cast<std::int64_t>(sequence) * heads + head) * strips + strip) * 2 * side;
  }
};
constexpr std::uint32_t row_bytes = 2 * side * sizeof(float);

// The softmax and its gradient by halves of a tile, so that the exponentials of one half can run beside the gradient of
// the other. lse(i), delta(i): those of the query of value i.
constexpr int half_values = values / 2;

/// Turns scores into probabilities.
template <class F>
__device__ void weigh(Sums& scores, int half, float scale_of_2, const F& lse) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = half * half_values; i < (half + 1) * half_values; ++i)
    scores(i) = exp2_of(fmaf(scores(i), scale_of_2, -lse(i)));
}
/// Clears what lies after the diagonal.
template <class F>
__device__ void mask(Sums& scores, int half, const F& after) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = half * half_values; i < (half + 1) * half_values; ++i)
    if (after(i)) scores(i) = 0;
}
/// ds, the gradient of the scores, from probabilities and their gradients.
template <class F>
__device__ void differentiate(Factor& ds, const Sums& scores, const Sums& slopes, int half, const F& delta) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = half * half_values; i < (half + 1) * half_values; i += 2)
    pair(ds, i / 2) = packed(scores(i) * (slopes(i) - delta(i)), scores(i + 1) * (slopes(i + 1) - delta(i + 1)));
}

/// dQ.
struct Queries : OverKeys {
  enum Holding : int { query, dout, held_count };
  using Call = Gradients;
  struct Memory {
    static constexpr unsigned stages = 4;
    ItemTiles<held_count> held;
    Tile out[groups], passing[stages][2], result[groups];
    Ring<1> out_ring;
    Ring<stages> ring;

    __device__ void init() { held.ring.init(), out_ring.init(), ring.init(); }
  };

  __device__ static void load_held(const Call& call, const Order& order, Memory& memory) {
    unsigned n = 0;
    for (Item item; item = order[n]; ++n) {
      const int strips = min(groups, last(call, item) + 1);
      std::uint64_t* const arrival = memory.held.fill(n, item, strips);
      each_strip(call, item, [&](int g, int token) {
        Tile(&at)[held_count] = memory.held.tile[n % held_stages][g];
        load(at[query], call.qkv, arrival, item.head, token, item.sequence);
        load(at[dout], call.dout, arrival, item.head, token, item.sequence);
      });
      memory.out_ring.wait_empty(n);
      std::uint64_t* const out_arrival = memory.out_ring.fill(n, static_cast<std::uint32_t>(strips) * tile_bytes);
      each_strip(call, item, [&](int g, int token) {
        load(memory.out[g], call.out, out_arrival, item.head, token, item.sequence);
      });
    }
    memory.held.end(n);
  }

  /// Of two rows, of which a thread has values: the lse in base 2, and the dot product of dout with out.
  struct RowSums {
    float lse[2], delta[2];

    __device__ RowSums(const Call& call, const Item& item, int strip, const ThreadLayout& layout) {
      const float* const from =
          call.lse + (static_cast<std::int64_t>(item.sequence) * call.heads + item.head) * call.length;
      for (int half = 0; half < 2; ++half) {
        const int token = strip * side + layout.row(2 * half);
        lse[half] =
            token < call.length ? from[token] * std::numbers::log2e_v<float> : std::numeric_limits<float>::infinity();
      }
    }
    __device__ void multiply(Factor& dy, Factor& y) {
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < 2; ++half) {
        float sum = 0;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < values; ++i)
          if (i / 2 % 2 == half) sum = fmaf(static_cast<float>(dy(i)), static_cast<float>(y(i)), sum);
        CUTLASS_PRAGMA_UNROLL
        for (int lane = 1; lane < 4; lane *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lane);
        delta[half] = sum;
      }
    }
    /// To memory, for the other sweep.
    __device__ void write(float* to, const Group& group) const {
      if (group.thread % 4 != 0) return;
      for (int half = 0; half < 2; ++half) {
        const int row = group.layout().row(2 * half);
        to[row] = lse[half], to[side + row] = delta[half];
      }
    }
  };

  __device__ static void compute(const Call& call, Memory& memory, const Group& group) {
    unsigned count = 0;
    for (unsigned n = 0; const Item item = memory.held.wait(n); ++n) {
      const Course course = OverKeys::course(call, item, group.index);
      if (course.active > 0) {
        add_item(call, memory, group, n, item, course, count);
      } else {
        memory.held.ring.release(n, group);
        memory.out_ring.wait(n), memory.out_ring.release(n, group);
        memory.ring.skip(count, course.tiles, group);
      }
    }
  }

  __device__ static void add_item(const Call& call, Memory& memory, const Group& group, unsigned n, const Item& item,
                                  const Course& course, unsigned& count) {
    const int strip = course.active - 1;
    Tile(&held)[held_count] = memory.held.tile[n % held_stages][group.index];
    RowSums rows(call, item, strip, group.layout());
    memory.out_ring.wait(n);
    Factor dy = read(held[dout], group.layout()), y = read(memory.out[group.index], group.layout());
    memory.out_ring.release(n, group);
    rows.multiply(dy, y);
    Sums dq;
    cute::clear(dq);
    memory.ring.skip(count, course.before(), group);
    add_tiles(call, memory, group, held[query], dy, rows, course, count, dq);
    memory.held.ring.release(n, group);
    rows.write(call.rows_of(item.sequence, item.head, strip), group);
    Tile& result = memory.result[group.index];
    group.put([&] { write(result, group.layout(), dq, call.scale); },
              [&] { store(call.dqkv, result, item.head, strip * side, item.sequence); });
    memory.ring.skip(count, course.after(), group);
  }

  /// The product that adds to dQ runs on under the scores of the next tile.
  __device__ static void add_tiles(const Call& call, Memory& memory, const Group& group, Tile& q, Factor& dy,
                                   const RowSums& rows, const Course& course, unsigned& count, Sums& dq) {
    const ThreadLayout at = group.layout();
    const auto lse = [&](int i) { return rows.lse[i / 2 % 2]; };
    const auto delta = [&](int i) { return rows.delta[i / 2 % 2]; };
    const auto after = [&](int i) { return at.column(i) > at.row(i); };
    Factor ds;
    const unsigned first = count, diagonal = first + course.diagonal();
    for (const unsigned end = first + static_cast<unsigned>(course.active); count != end; ++count) {
      Tile(&tile)[2] = memory.passing[uniform(count) % Memory::stages];
      Sums scores, slopes;
      memory.ring.wait(count);
      begin_products(scores);
      start_by_rows(scores, q, tile[key]);
      end_products();
      begin_products(slopes, dy);
      start_by_rows(slopes, dy, tile[value]);
      end_products();
      wait_products<1>(scores, dq, ds);
      if (count != first) memory.ring.release(count - 1, group);
      weigh(scores, 0, call.scale_of_2(), lse);
      if (count == diagonal) mask(scores, 0, after);
      wait_products<0>(slopes);
      weigh(scores, 1, call.scale_of_2(), lse);
      differentiate(ds, scores, slopes, 0, delta);
      if (count == diagonal) mask(scores, 1, after);
      differentiate(ds, scores, slopes, 1, delta);
      begin_products(dq, ds);
      start_adding(dq, ds, tile[key]);
      end_products();
    }
    wait_products<0>(dq, ds);
    memory.ring.release(count - 1, group);
  }
};

/// dK and dV: each group holds a strip of keys and values. The queries that see them, of all heads that share them, and
/// the gradients pass.
struct Keys {
  enum Holding : int { key, value, held_count };
  enum Passing : int { query, dout };
  using Call = Gradients;
  struct Memory {
    static constexpr unsigned stages = 4;
    ItemTiles<held_count> held;
    Tile passing[stages][2], result[groups][2];
    alignas(128) float rows[stages][2][side];  ///< of queries: lse, then delta
    Ring<stages> ring;

    __device__ void init() { held.ring.init(), ring.init(); }
  };

  __device__ static int strip(const Item& item, int group) {
    return groups * item.place + (item.turned() ? groups - 1 - group : group);
  }
  __device__ static Course course(const Call& call, const Item& item, int group) {
    return {call.strips - groups * item.place, max(0, call.strips - strip(item, group)), !item.turned()};
  }

  __device__ static void load_held(const Call& call, const Order& order, Memory& memory) {
    unsigned n = 0;
    for (Item item; item = order[n]; ++n) {
      std::uint64_t* const arrival = memory.held.fill(n, item, min(groups, call.strips - groups * item.place));
      for (int g = 0; g < groups; ++g)
        if (const int token = strip(item, g) * side; token < call.length) {
          Tile(&at)[held_count] = memory.held.tile[n % held_stages][g];
          load(at[key], call.qkv, arrival, call.heads + item.head, token, item.sequence);
          load(at[value], call.qkv, arrival, call.heads + call.kv_heads + item.head, token, item.sequence);
        }
    }
    memory.held.end(n);
  }

  __device__ static void load_passing(const Call& call, const Order& order, Memory& memory) {
    unsigned count = 0;
    Item item;
    for (unsigned n = 0; item = order[n]; ++n) {
      const int first = groups * item.place, tiles = call.strips - first, sharing = call.sharing();
      for (int head = item.head * sharing; head < (item.head + 1) * sharing; ++head)
        for (int i = 0; i < tiles; ++i, ++count) {
          const int tile = item.turned() ? call.strips - 1 - i : first + i;
          memory.ring.wait_empty(count);
          std::uint64_t* const arrival = memory.ring.fill(count, 2 * tile_bytes + row_bytes);
          Tile(&at)[2] = memory.passing[count % Memory::stages];
          load(at[query], call.qkv, arrival, head, tile * side, item.sequence);
          load(at[dout], call.dout, arrival, head, tile * side, item.sequence);
          cute::SM90_BULK_COPY_G2S::copy(call.rows_of(item.sequence, head, tile), arrival,
                                         memory.rows[count % Memory::stages], row_bytes);
        }
    }
  }

  __device__ static void compute(const Call& call, Memory& memory, const Group& group) {
    unsigned count = 0;
    for (unsigned n = 0; const Item item = memory.held.wait(n); ++n) {
      const Course course = Keys::course(call, item, group.index);
      if (course.active > 0)
        add_item(call, memory, group, n, course, count);
      else
        memory.ring.skip(count, course.tiles * call.sharing(), group);
      memory.held.ring.release(n, group);
    }
  }

  __device__ static void add_item(const Call& call, Memory& memory, const Group& group, unsigned n,
                                  const Course& course, unsigned& count) {
    Sums dk, dv;
    cute::clear(dk), cute::clear(dv);
    for (int head = 0; head < call.sharing(); ++head) {
      memory.ring.skip(count, course.before(), group);
      const unsigned diagonal = count + course.diagonal(), end = count + static_cast<unsigned>(course.active);
      for (; count != end; ++count) add_tile(call, memory, group, n, count, dk, dv, count == diagonal);
      const Course again = Keys::course(call, memory.held.item(n), group.index);  // rather than in registers
      memory.ring.skip(count, again.after(), group);
    }
    const Item item = memory.held.item(n);
    Tile(&result)[2] = memory.result[group.index];
    group.put(
        [&] {
          write(result[key], group.layout(), dk, call.scale);
          write(result[value], group.layout(), dv, 1);
        },
        [&] {
          const int slot = call.heads + item.head, token = (call.strips - course.active) * side;
          store(call.dqkv, result[key], slot, token, item.sequence);
          store(call.dqkv, result[value], slot + call.kv_heads, token, item.sequence);
        });
  }

  /// lse or delta of the queries of half a tile, in registers ahead of their use.
  struct OfColumns {
    float value[half_values / 2];
    __device__ OfColumns(const float (&from)[side], const ThreadLayout& at, int half) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < half_values / 2; ++i) value[i] = from[at.column(half * half_values + i / 2 * 4 + i % 2)];
    }
    __device__ float operator()(int i) const { return value[i % half_values / 4 * 2 + i % 2]; }
  };

  /// Scores are transposed here: rows are keys, columns queries.
  __device__ static void add_tile(const Call& call, Memory& memory, const Group& group, unsigned n, unsigned count,
                                  Sums& dk, Sums& dv, bool diagonal) {
    const ThreadLayout at = group.layout();
    const auto after = [&](int i) { return at.column(i) < at.row(i); };
    Tile(&held)[held_count] = memory.held.tile[uniform(n) % held_stages][group.index];
    const unsigned stage = uniform(count) % Memory::stages;
    Tile(&tile)[2] = memory.passing[stage];
    const auto& [lse, delta] = memory.rows[stage];
    Sums scores, slopes;
    Factor ds;
    memory.ring.wait(count);
    const OfColumns lse_0(lse, at, 0);
    begin_products(scores);
    start_by_rows(scores, held[key], tile[query]);
    end_products();
    begin_products(slopes);
    start_by_rows(slopes, held[value], tile[dout]);
    end_products();
    const OfColumns lse_1(lse, at, 1);
    wait_products<1>(scores);
    weigh(scores, 0, call.scale_of_2(), lse_0);
    const OfColumns delta_0(delta, at, 0);
    if (diagonal) mask(scores, 0, after);
    wait_products<0>(slopes);
    weigh(scores, 1, call.scale_of_2(), lse_1);
    differentiate(ds, scores, slopes, 0, delta_0);
    const OfColumns delta_1(delta, at, 1);
    if (diagonal) mask(scores, 1, after);
    Factor p = rounded(scores);
    begin_products(dv, p);
    start_adding(dv, p, tile[dout]);
    end_products();
    differentiate(ds, scores, slopes, 1, delta_1);
    begin_products(dk, ds);
    start_adding(dk, ds, tile[query]);
    end_products();
    wait_products<0>(dk, dv, p, ds);
    memory.ring.release(count, group);
  }
};

}  // namespace

bool hopper_backward(Stream& stream, Arena& arena, const AttentionShape& s, const AttentionOperands& pass,
                     const Tensor& dqkv, const Tensor& dout) {
  const auto& [out, lse, qkv, none] = pass;
  if (!takes(s, side, {dqkv, dout, qkv, out})) return false;
  const Arena::Frame frame(arena);
  const Tensor rows = arena.temp(DType::f32, {s.sequences, s.heads, ceil_div(s.length, side), 2 * side});
  if (stream.dry()) return true;
  const Gradients call{sequences_of(s, qkv),    map_of(s, dout, s.heads),
                       map_of(s, out, s.heads), map_of(s, dqkv, s.heads + 2 * s.kv_heads),
                       lse.as<float>(),         rows.as<float>()};
  start<Queries>(stream, call, call.heads);
  start<Keys>(stream, call, call.kv_heads);
  return true;
}

}  // namespace tessera::attention
