#pragma once
// How persistent blocks of warpgroups sweep over tiles. It says which strips each block takes, and has the rings in
// shared memory through which one warpgroup loads what the others compute with. For sources compiled for sm_90a only.
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/fast_math.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numbers>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/tiles_sm90a.cuh"
#include "kernels/base/cuda.cuh"
#include "kernels/base/error.hpp"
#include "kernels/base/index.hpp"
#include "kernels/gemm/route.hpp"

namespace tessera::attention::tiles {

constexpr int groups = 3;  ///< warpgroups of a block that compute, a strip of 64 rows each; one more loads
constexpr int block_threads = (groups + 1) * group_threads, reading_warps = groups * group_threads / 32;
constexpr int loading_registers = 24, computing_registers = 160;
constexpr unsigned held_stages = 2;  ///< a group's strip in shared memory: that of this item and that of the next

/// One head of one sequence and `groups` of its strips. Place 0 has the most work. Tiles pass in one direction at even
/// places and in the other at odd ones. The group that ends an item first begins the next one first.
struct Item {
  int sequence, head, place = -1;  ///< -1: there are no more
  __device__ explicit operator bool() const { return place >= 0; }
  __device__ bool turned() const { return place % 2 != 0; }
};

/// Divides the items among the blocks. About as many heads as there are blocks are under way at a time, so that more of
/// their tiles come from the L2 cache. That makes batches of one head a block, and one of the rest. Of a batch the
/// longest items come first, dealt out forwards and backwards in turn, which evens out their sum.
class Order {
 public:
  Order(int sequences, int heads, int places, int blocks)
      : Order(sequences * heads, heads, places, blocks, heads_of_last(sequences * heads, blocks)) {}

  /// The item number n of this block.
  __device__ Item operator[](unsigned n) const {
    Item item;
    const int block = static_cast<int>(blockIdx.x);
    const int index = static_cast<int>(n) * blocks_ + (n % 2 == 0 ? block : blocks_ - 1 - block);
    if (index >= items_) return item;
    int first = before_last_, within = index - before_last_ * places_, head;
    const bool last = within >= 0;
    if (!last) first = batch_.divmod(within, index) * blocks_;
    item.place = (last ? last_heads_ : batch_heads_).divmod(head, within);
    item.sequence = heads_.divmod(item.head, first + head);
    return item;
  }

 private:
  Order(int all, int heads, int places, int blocks, int last)
      : batch_(blocks * places),
        batch_heads_(blocks),
        last_heads_(std::max(1, last)),
        heads_(heads),
        blocks_(blocks),
        places_(places),
        items_(all * places),
        before_last_(all - last) {}
  /// A rest of few heads would leave blocks without work: it joins the batch before.
  static int heads_of_last(int all, int blocks) {
    const int rest = all % blocks;
    return rest > 0 && rest <= blocks / 2 && all > blocks ? rest + blocks : rest;
  }

  cutlass::FastDivmod batch_, batch_heads_, last_heads_, heads_;
  int blocks_, places_, items_, before_last_;
};

/// A group's way through the tiles that pass: `active` of them concern its strip. Either it begins late, with the tile
/// on the diagonal, or it ends early, with that one.
struct Course {
  int tiles, active;
  bool late;
  __device__ int before() const { return late ? tiles - active : 0; }
  __device__ int after() const { return tiles - active - before(); }
  /// The place of the tile on the diagonal among those that concern the strip.
  __device__ unsigned diagonal() const { return late ? 0 : static_cast<unsigned>(active - 1); }
};

/// One warpgroup's part in a block.
struct Group {
  int index, thread = static_cast<int>(threadIdx.x) % group_threads;
  __device__ explicit Group(int i) : index(i) {}
  __device__ ThreadLayout layout() const { return ThreadLayout(thread); }
  __device__ bool leader() const { return thread % 32 == 0; }  ///< of its warp

  /// Writes results to shared memory by write(), then to global memory by store() in one thread, which returns before
  /// they are there.
  template <class Write, class Store>
  __device__ void put(const Write& write, const Store& store) const {
    if (thread == 0) cute::tma_store_wait<0>();
    sync();
    write();
    cute::tma_store_fence();
    sync();
    if (thread != 0) return;
    store();
    cute::tma_store_arrive();
  }

 private:
  __device__ void sync() const { cutlass::arch::NamedBarrier::sync(group_threads, static_cast<std::uint32_t>(index)); }
};

/// Barriers of a ring of stages in shared memory, which one thread fills by TMA and all groups read. Both count the
/// stages that they have passed; the barriers of a stage change phase each time around. `readers`: warps that release.
template <unsigned stages, std::uint32_t readers = reading_warps>
struct Ring {
  static_assert((stages & (stages - 1)) == 0, "a count gives stage and phase by its bits");
  cutlass::arch::ClusterTransactionBarrier full[stages];
  cutlass::arch::ClusterBarrier empty[stages];

  __device__ static int stage(unsigned count) { return static_cast<int>(count % stages); }
  __device__ static std::uint32_t phase(unsigned count) { return count / stages % 2; }

  __device__ void init() {
    for (int i = 0; i < static_cast<int>(stages); ++i) full[i].init(1), empty[i].init(readers);
  }
  /// The filling thread: waits until the stage is free.
  __device__ void wait_empty(unsigned count) { empty[stage(count)].wait(phase(count) ^ 1); }
  /// Announces `bytes` that arrive at the barrier returned; what the thread wrote before is seen with them.
  __device__ std::uint64_t* fill(unsigned count, std::uint32_t bytes) {
    full[stage(count)].arrive_and_expect_tx(bytes);
    return reinterpret_cast<std::uint64_t*>(&full[stage(count)]);
  }
  /// A reading warp: waits for the stage, then releases it once it has been read.
  __device__ void wait(unsigned count) { full[stage(count)].wait(phase(count)); }
  __device__ void release(unsigned count, const Group& group) {
    __syncwarp();
    if (group.leader()) empty[stage(count)].arrive();
  }
  __device__ void skip(unsigned& count, int tiles, const Group& group) {
    for (; tiles > 0; --tiles, ++count) wait(count), release(count, group);
  }
};

/// The tiles that each group of a block holds, for the item that it is at and for the next one, and those items.
template <int tiles>
struct ItemTiles {
  Tile tile[held_stages][groups][tiles];
  Item items[held_stages];
  Ring<held_stages> ring;

  /// The loading thread: names item n, and announces the tiles of `strips` of its strips.
  __device__ std::uint64_t* fill(unsigned n, const Item& item, int strips) {
    ring.wait_empty(n);
    items[n % held_stages] = item;
    return ring.fill(n, static_cast<std::uint32_t>(strips) * tiles * tile_bytes);
  }
  __device__ void end(unsigned n) { fill(n, Item(), 0); }
  /// A group: waits for item n and its tiles.
  __device__ Item wait(unsigned n) {
    ring.wait(n);
    return item(n);
  }
  __device__ Item item(unsigned n) const { return items[n % held_stages]; }
};

/// What all sweeps know of the packed projections. A sequence has `strips` of 64 rows; the last one may be cut.
struct Sequences {
  CUtensorMap qkv;
  int count, length, heads, kv_heads, strips;
  float scale;

  __device__ int sharing() const { return heads / kv_heads; }
  __device__ float scale_of_2() const { return scale * std::numbers::log2e_v<float>; }
};

/// The way of sweeps in which groups hold queries, and the keys and values that they see pass.
struct OverKeys {
  enum Passing : int { key, value };

  /// The last strip, and tile, of an item. Items count from the end of a sequence; the last one may lack strips.
  __device__ static int last(const Sequences& s, const Item& item) { return s.strips - groups * item.place - 1; }
  __device__ static int strip(const Sequences& s, const Item& item, int group) {
    return last(s, item) - (item.turned() ? group : groups - 1 - group);
  }
  __device__ static Course course(const Sequences& s, const Item& item, int group) {
    return {last(s, item) + 1, max(0, strip(s, item, group) + 1), item.turned()};
  }
  /// The loading thread: calls f(group, token) for each strip of an item.
  template <class F>
  __device__ static void each_strip(const Sequences& s, const Item& item, const F& f) {
    for (int g = 0; g < groups; ++g)
      if (const int token = strip(s, item, g) * side; token >= 0) f(g, token);
  }
  template <class Memory>
  __device__ static void load_passing(const Sequences& s, const Order& order, Memory& memory) {
    unsigned count = 0;
    Item item;
    for (unsigned n = 0; item = order[n]; ++n) {
      const int slot = s.heads + item.head / s.sharing(), last = OverKeys::last(s, item);
      for (int i = 0; i <= last; ++i, ++count) {
        const int token = (item.turned() ? last - i : i) * side;
        memory.ring.wait_empty(count);
        std::uint64_t* const arrival = memory.ring.fill(count, 2 * tile_bytes);
        Tile(&at)[2] = memory.passing[count % Memory::stages];
        load(at[key], s.qkv, arrival, slot, token, item.sequence);
        load(at[value], s.qkv, arrival, slot + s.kv_heads, token, item.sequence);
      }
    }
  }
};

/// A sweep: one warpgroup of a block loads, the others compute.
template <class Sweep>
__global__ void __launch_bounds__(block_threads, 1)
    sweep_kernel(const __grid_constant__ typename Sweep::Call call, const __grid_constant__ Order order) {
  using Memory = typename Sweep::Memory;
  extern __shared__ __align__(1024) std::uint8_t bytes[];  // CUDA aligns it as the swizzle of 128 bytes needs
  Memory& memory = *reinterpret_cast<Memory*>(bytes);
  if (threadIdx.x == 0) {
    memory.init();
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  const int group = static_cast<int>(uniform(threadIdx.x / group_threads));
  if (group == groups) {
    cutlass::arch::warpgroup_reg_dealloc<loading_registers>();
    const int thread = static_cast<int>(threadIdx.x) % group_threads;
    if (thread == 0) Sweep::load_passing(call, order, memory);
    if (thread == 32) Sweep::load_held(call, order, memory);
  } else {
    cutlass::arch::warpgroup_reg_alloc<computing_registers>();
    Sweep::compute(call, memory, Group(group));
    cute::tma_store_wait<0>();
  }
}

/// A matrix of tokens whose rows have `slots` heads, or parts of heads, of 64 columns, as TMA sees it: in boxes of one
/// tile.
inline CUtensorMap map_of(const AttentionShape& s, const Tensor& matrix, std::int64_t slots) {
  static const auto encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result),
               "cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
  }();
  const auto whole = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  const std::int64_t head = side * size_of(DType::bf16), row = slots * head;
  const cuuint64_t dims[] = {side, whole(slots), whole(s.length), whole(s.sequences)};
  const cuuint64_t strides[] = {whole(head), whole(row), whole(s.length * row)};
  const cuuint32_t box[] = {side, 1, side, 1}, steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, matrix.data, dims, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
    refuse("attention", "TMA takes no such tensor");
  return map;
}

inline Sequences sequences_of(const AttentionShape& s, const Tensor& qkv) {
  const auto small = [](std::int64_t n) { return static_cast<int>(n); };
  return {map_of(s, qkv, (s.heads + 2 * s.kv_heads) * s.head_dim / side),
          small(s.sequences),
          small(s.length),
          small(s.heads),
          small(s.kv_heads),
          small(ceil_div(s.length, side)),
          1 / std::sqrt(static_cast<float>(s.head_dim))};
}

/// Whether this GPU takes heads of `head_dim` columns, and this shape has them; `matrices` are all that TMA reads and
/// writes.
inline bool takes(const AttentionShape& s, int head_dim, std::initializer_list<Tensor> matrices) {
  constexpr int tma_alignment = 16;
  for (const Tensor& t : matrices)
    if (t.type != DType::bf16 || reinterpret_cast<std::uintptr_t>(t.data) % tma_alignment != 0) return false;
  return gemm::processor() == 90 && s.head_dim == head_dim &&
         s.sequences * s.heads * ceil_div(s.length, side) <= std::numeric_limits<int>::max() / side;
}

inline int multiprocessors_of_device() {
  int device = 0, multiprocessors = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  return multiprocessors;
}

template <class Sweep>
void start(Stream& stream, const typename Sweep::Call& call, int heads) {
  constexpr int bytes = sizeof(typename Sweep::Memory);
  const int multiprocessors = multiprocessors_of_device();
  const Order order(call.count, heads, (call.strips + groups - 1) / groups, multiprocessors);
  start_kernel(static_cast<cudaStream_t>(stream.native()), "attention", sweep_kernel<Sweep>,
               {static_cast<unsigned>(multiprocessors), block_threads, bytes}, call, order);
}

}  // namespace tessera::attention::tiles
